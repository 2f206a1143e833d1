package schema

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	s, err := Load()
	require.NoError(t, err)
	require.NoError(t, s.Check("runner", []byte(`{"build_directory_path":"/b","grpcServers":[{"listenPaths":["/x"],"authenticationPolicy":{"allow":{"public":{"any":[1]}}},
		"keepaliveParameters":{"time":"1.5s","timeout":"2s"},"tls":null}]}`)), "both names of fields, and free values")
	for text, want := range map[string]string{
		`{}`:                           "the field buildDirectoryPath is required",
		`[]`:                           "is to be an object, not []",
		`null`:                         "is to be an object, not null",
		`{"grpcServer":[]}`:            "grpcServer: there is no such field; is grpcServers meant?",
		`{"zzz":{}}`:                   "zzz: there is no such field; there are: appleXcodeDeveloperDirectories, buildDirectoryPath,",
		`{"buildDirectoryPath":{}}`:    "buildDirectoryPath: is to be a string, not {}",
		`{"cleanProcessTable":"yes"}`:  `cleanProcessTable: is to be true or false, not "yes"`,
		`{"buildDirectoryPath":"/b"}`:  "the field grpcServers is required",
		`{"grpcServers":[{"tls":[]}]}`: "grpcServers[0].tls: is to be an object, not []",
		`{"grpcServers":[{"keepaliveParameters":{"time":"10"}}]}`:                                         `grpcServers[0].keepaliveParameters.time: is not a valid Duration, but "10"`,
		`{"grpcServers":[{"keepaliveParameters":{"time":10}}]}`:                                           `grpcServers[0].keepaliveParameters.time: is not a valid Duration, but 10`,
		`{"grpcServers":[{"tracing":{"/a":{"attribute":[]}}}]}`:                                           `grpcServers[0].tracing["/a"].attribute: there is no such field`,
		`{"grpcServers":[{"tls":{},"alts":{}}]}`:                                                          "grpcServers[0]: ",
		`{"grpcServers":[{"alts":{"x":1}}]}`:                                                              "grpcServers[0].alts.x: there is no such field; it is empty here",
		`{"grpcServers":[{"tls":{"serverKeyPair":{"inline":{}}}},{"listen":1}]}`:                          "grpcServers[1].listen: there is no such field; there are:",
		`{"buildDirectoryPath":"/b","grpcServers":[{"authenticationPolicy":{"any":{"policies":[{}]}}}]}`:  "grpcServers[0].authenticationPolicy.any.policies[0]: has none of allow, any, all, deny",
		`{"buildDirectoryPath":"/b","grpcServers":[{"authenticationPolicy":{"remote":{"endpoint":{}}}}]}`: "grpcServers[0].authenticationPolicy.remote.endpoint: the field address is required",
		`{"grpcServers":[{"authenticationPolicy":{"jwt":{"cacheReplacementPolicy":"NEWEST"}}}]}`:          "cacheReplacementPolicy: is to be one of UNKNOWN, FIRST_IN_FIRST_OUT",
		`{"buildDirectoryPath":"/b","buildDirectoryPath":"/c"}`:                                           "duplicate field",
		`{"grpcServers":[{"maximumReceivedMessageSizeBytes":1.5}]}`:                                       "grpcServers[0].maximumReceivedMessageSizeBytes: is to be an integer (int64), not 1.5",
	} {
		var wrong *Error
		require.ErrorAs(t, s.Check("runner", []byte(text)), &wrong, text)
		require.Contains(t, wrong.Error(), want, text)
	}
	require.ErrorContains(t, s.Check("clientd", []byte("{}")), "the program clientd")
	for name := range required {
		_, err := s.files.FindDescriptorByName(prefix + name)
		require.NoError(t, err)
	}
}

// FuzzCheck: whatever a configuration evaluates to, it is accepted or refused with an *Error.
func FuzzCheck(f *testing.F) {
	s, err := Load()
	require.NoError(f, err)
	for _, text := range []string{`{"grpcServers":[{"tls":{}}]}`, `{"contentAddressableStorage":{"backend":{"sharding":{"shards":{"a":{"weight":"1"}}}}}}`, `[`, `{"a":1e999}`} {
		f.Add("storage", text)
	}
	f.Fuzz(func(t *testing.T, program, text string) {
		if program != "storage" && program != "worker" {
			program = "scheduler"
		}
		if err := s.Check(program, []byte(text)); err != nil {
			var wrong *Error
			require.ErrorAs(t, err, &wrong)
			require.NotEmpty(t, wrong.Problem)
		}
	})
}
