"""A control plane with gRPC's own implementation of Envoy's discovery service.

Usage: control_plane.py PORT [FOLDER-OF-CERTIFICATES]. Prints its port, then each request as a line of JSON. Each line of its input is
a snapshot: {"version": …, "configs": […]}, or "resources" in place of "configs", each with its type and its bytes in Base64, and "type"
for another type of the response. As go-control-plane does, it responds to a request at once unless it contains the snapshot's version.
"""

import base64
import json
import queue
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import any_pb2, descriptor_pb2, json_format, struct_pb2
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "ratelimit.config.ratelimit.v3"
TYPE = f"type.googleapis.com/{PACKAGE}.RateLimitConfig"
UNITS = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"]
# The fields of rls_conf.proto in the order of their numbers: name, type, and "*" for a list.
MESSAGES = {
    "RateLimitConfig": ["name string", "domain string", "descriptors RateLimitDescriptor *"],
    "RateLimitDescriptor": [
        "key string",
        "value string",
        "rate_limit RateLimitPolicy",
        "descriptors RateLimitDescriptor *",
        "shadow_mode bool",
        "detailed_metric bool",
        "quota_mode bool",
        "metadata google.protobuf.Struct",
        "unknown string",
    ],
    "RateLimitPolicy": [
        "unit RateLimitUnit",
        "requests_per_unit uint32",
        "unlimited bool",
        "name string",
        "replaces RateLimitReplace *",
    ],
    "RateLimitReplace": ["name string"],
}


def message():
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": field.TYPE_STRING, "bool": field.TYPE_BOOL, "uint32": field.TYPE_UINT32}
    file = descriptor_pb2.FileDescriptorProto(name="rls_conf.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    units = file.enum_type.add(name="RateLimitUnit")
    for number, name in enumerate(UNITS):
        units.value.add(name=name, number=number)
    for name, fields in MESSAGES.items():
        made = file.message_type.add(name=name)
        for number, (name, kind, *repeated) in enumerate(map(str.split, fields), 1):
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            added = made.field.add(name=name, number=number, label=label)
            if kind in scalars:
                added.type = scalars[kind]
            else:
                added.type = field.TYPE_ENUM if kind == "RateLimitUnit" else field.TYPE_MESSAGE
                added.type_name = f".{kind}" if "." in kind else f".{PACKAGE}.{kind}"
    pool = Default()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.RateLimitConfig"))


RateLimitConfig = message()
changed = threading.Condition()
snapshot = None


def print_line(**fields):
    # One write: `print` writes the end of the line separately, and streams have threads of their own.
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def resources(snapshot):
    for config in snapshot.get("configs", []):
        value = json_format.ParseDict(config, RateLimitConfig()).SerializeToString()
        yield any_pb2.Any(type_url=TYPE, value=value)
    for resource in snapshot.get("resources", []):
        yield any_pb2.Any(type_url=resource.get("type", TYPE), value=base64.b64decode(resource["value"]))


def shuffled(resources):
    # As in Go, whose maps have no order.
    all = list(resources)
    return random.sample(all, len(all))


class Discovery(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        received, nonce = queue.Queue(), 0

        def pump():
            try:
                for request in requests:
                    received.put(request)
            except grpc.RpcError:
                pass
            received.put(None)
            with changed:
                changed.notify_all()

        threading.Thread(target=pump, daemon=True).start()
        for request in iter(received.get, None):
            print_line(
                node=request.node.id,
                metadata=json_format.MessageToDict(request.node.metadata),
                header=dict(context.invocation_metadata()).get("x-test"),
                type=request.type_url,
                version=request.version_info,
                nonce=request.response_nonce,
                error=request.error_detail.message,
                code=request.error_detail.code,
            )
            with changed:
                is_new = lambda: snapshot and snapshot["version"] != request.version_info
                changed.wait_for(lambda: not context.is_active() or is_new())
                current = snapshot
            if context.is_active():
                nonce += 1
                yield discovery_pb2.DiscoveryResponse(
                    version_info=current["version"],
                    resources=shuffled(resources(current)),
                    type_url=current.get("type", TYPE),
                    nonce=str(nonce),
                )


server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)])
ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Discovery(), server)
address = f"127.0.0.1:{sys.argv[1]}"
if len(sys.argv) > 2:
    read = lambda name: open(f"{sys.argv[2]}/{name}", "rb").read()
    pair = (read("server.key"), read("server.pem"))
    credentials = grpc.ssl_server_credentials([pair], read("ca.pem"), require_client_auth=True)
    port = server.add_secure_port(address, credentials)
else:
    port = server.add_insecure_port(address)
server.start()
print_line(port=port)
for line in sys.stdin:
    with changed:
        snapshot = json.loads(line)
        changed.notify_all()
