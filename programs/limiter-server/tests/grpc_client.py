"""A gRPC client that shares no code with the server: it learns the messages by reflection.

Usage: grpc_client.py HOST:PORT, of a server with the configuration of tests/it/python.rs.
"""

import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PATIENCE = 30

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.max_send_message_length", -1)])
database = ProtoReflectionDescriptorDatabase(channel)
pool = DescriptorPool(database)
message = lambda name: GetMessageClass(pool.FindMessageTypeByName(name))
Request = message("envoy.service.ratelimit.v3.RateLimitRequest")
Response = message("envoy.service.ratelimit.v3.RateLimitResponse")
OK, OVER_LIMIT = 1, 2


def method(path, response, serialize=lambda message: message.SerializeToString()):
    return channel.unary_unary(path, request_serializer=serialize, response_deserializer=response.FromString)


should_rate_limit = method("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", Response)


def request(domain, *descriptors, hits=0):
    made = Request(domain=domain, hits_addend=hits)
    for entries in descriptors:
        descriptor = made.descriptors.add()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
    return made


def ask(*args, **kwargs):
    return should_rate_limit(request(*args, **kwargs), timeout=PATIENCE)


def code_of(call, argument):
    try:
        return call(argument, timeout=PATIENCE).overall_code
    except grpc.RpcError as error:
        return error.code()


def the_services_are_listed():
    services = set(database.get_services())
    assert {"envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"} <= services, services
    check = method("/grpc.health.v1.Health/Check", message("grpc.health.v1.HealthCheckResponse"))
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"]:
        health = check(message("grpc.health.v1.HealthCheckRequest")(service=name), timeout=PATIENCE)
        assert health.status == 1, health


def of_many_requests_the_maximum_is_admitted():
    futures = [should_rate_limit.future(request("d", [("user", "many")]), timeout=PATIENCE) for _ in range(300)]
    codes = [future.result().overall_code for future in futures]
    assert (codes.count(OK), codes.count(OVER_LIMIT)) == (100, 200), codes


def answers_have_envoys_fields():
    first = ask("d", [("user", "ann")], hits=99)
    status = first.statuses[0]
    limit = status.current_limit
    assert (first.overall_code, status.limit_remaining) == (OK, 1), first
    assert (limit.requests_per_unit, limit.unit, limit.name) == (100, 3, "per user"), first
    assert 3590 < status.duration_until_reset.ToSeconds() <= 3600, first
    fields = {field.key: field.value for field in first.response_headers_to_add}
    assert {"ratelimit", "ratelimit-policy"} <= fields.keys() and "retry-after" not in fields, first
    second = ask("d", [("user", "ann")], hits=2)
    assert (second.overall_code, second.statuses[0].code) == (OVER_LIMIT, OVER_LIMIT), second
    assert "retry-after" in {field.key for field in second.response_headers_to_add}, second


def all_or_nothing():
    both = [[("user", "bob")], [("site", "x")]]
    codes = [ask("d", *both).overall_code for _ in range(5)]
    assert codes == [OK, OK, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT], codes
    assert ask("d", both[0]).statuses[0].limit_remaining == 97


def what_has_no_rule_passes():
    for domain, entries in [("d", [("other", "x")]), ("nowhere", [("user", "ann")]), ("d", [])]:
        answer = ask(domain, entries)
        assert answer.overall_code == OK and not answer.statuses[0].HasField("current_limit"), answer


def bad_input_has_a_status():
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(should_rate_limit, request("", [("user", "ann")])) == invalid
    assert code_of(should_rate_limit, request("d")) == invalid
    assert code_of(should_rate_limit, request("d", *[[("user", "ann")]] * 10_000)) == invalid
    raw = method("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", Response, lambda data: data)
    for data in [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x04\x0a\x02\x0a\x05"]:
        code = code_of(raw, data)
        assert code in (invalid, grpc.StatusCode.INTERNAL), code
    assert code_of(should_rate_limit, request("d", [("user", "x" * 1_000_000)])) == OK
    assert code_of(should_rate_limit, request("d", [("user", "x" * 20_000_000)])) != OK
    unknown = request("d", [("user", "ann")])
    unknown.descriptors[0].limit.requests_per_unit = 1
    unknown.descriptors[0].limit.unit = 99
    assert code_of(should_rate_limit, unknown) == invalid
    assert code_of(should_rate_limit, request("d", [("user", "afterwards")])) == OK


for case in [
    the_services_are_listed,
    of_many_requests_the_maximum_is_admitted,
    answers_have_envoys_fields,
    all_or_nothing,
    what_has_no_rule_passes,
    bad_input_has_a_status,
]:
    case()
    print(case.__name__, "ok", flush=True)
