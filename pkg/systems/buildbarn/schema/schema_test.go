package schema

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func (s *Schema) check(program string, text []byte) error {
	_, err := s.Check(program, text)
	return err
}

func TestCheck(t *testing.T) {
	s, err := Load()
	require.NoError(t, err)
	require.NoError(t,
		s.check("runner",
			[]byte(`{"build_directory_path":"/b","grpcServers":[{"listenPaths":["/x"],"authenticationPolicy":{"allow":{"public":{"any":[1]}}},
		"keepaliveParameters":{"time":"1.5s","timeout":"2s"},"tls":null}]}`)), "both names of fields, and free values")
	for text, want := range map[string]string{
		`{}`:                "the field buildDirectoryPath is required",
		`[]`:                "must be an object, not []",
		`null`:              "must be an object, not null",
		`{"grpcServer":[]}`: "grpcServer: there is no such field; is grpcServers meant?",
		`{"zzz":{}}`: "zzz: there is no such field; there are: appleXcodeDeveloperDirectories, " +
			"buildDirectoryPath,",
		`{"buildDirectoryPath":{}}`:                                                                       "buildDirectoryPath: must be a string, not {}",
		`{"cleanProcessTable":"yes"}`:                                                                     `cleanProcessTable: must be true or false, not "yes"`,
		`{"buildDirectoryPath":"/b"}`:                                                                     "the field grpcServers is required",
		`{"grpcServers":[{"tls":[]}]}`:                                                                    "grpcServers[0].tls: must be an object, not []",
		`{"grpcServers":[{"keepaliveParameters":{"time":"10"}}]}`:                                         `grpcServers[0].keepaliveParameters.time: is not a valid Duration, but "10"`,
		`{"grpcServers":[{"keepaliveParameters":{"time":10}}]}`:                                           `grpcServers[0].keepaliveParameters.time: is not a valid Duration, but 10`,
		`{"grpcServers":[{"tracing":{"/a":{"attribute":[]}}}]}`:                                           `grpcServers[0].tracing["/a"].attribute: there is no such field`,
		`{"grpcServers":[{"tls":{},"alts":{}}]}`:                                                          "grpcServers[0]: ",
		`{"grpcServers":[{"alts":{"x":1}}]}`:                                                              "grpcServers[0].alts.x: there is no such field; this message has no fields",
		`{"grpcServers":[{"tls":{"serverKeyPair":{"inline":{}}}},{"listen":1}]}`:                          "grpcServers[1].listen: there is no such field; there are:",
		`{"buildDirectoryPath":"/b","grpcServers":[{"authenticationPolicy":{"any":{"policies":[{}]}}}]}`:  "grpcServers[0].authenticationPolicy.any.policies[0]: has none of allow, any, all, deny",
		`{"buildDirectoryPath":"/b","grpcServers":[{"authenticationPolicy":{"remote":{"endpoint":{}}}}]}`: "grpcServers[0].authenticationPolicy.remote.endpoint: the field address is required",
		`{"grpcServers":[{"authenticationPolicy":{"jwt":{"cacheReplacementPolicy":"NEWEST"}}}]}`:          "cacheReplacementPolicy: must be one of UNKNOWN, FIRST_IN_FIRST_OUT",
		`{"buildDirectoryPath":"/b","buildDirectoryPath":"/c"}`:                                           "duplicate field",
		`{"grpcServers":[{"maximumReceivedMessageSizeBytes":1.5}]}`:                                       "grpcServers[0].maximumReceivedMessageSizeBytes: must be an integer (int64), not 1.5",
	} {
		var wrong *Error
		require.ErrorAs(t, s.check("runner", []byte(text)), &wrong, text)
		require.Contains(t, wrong.Error(), want, text)
	}
	require.ErrorContains(t, s.check("clientd", []byte("{}")), "the program clientd")
	for name := range required {
		_, err := s.files.FindDescriptorByName(prefix + name)
		require.NoError(t, err)
	}
	for name, fields := range requiredWith {
		d, err := s.files.FindDescriptorByName(prefix + name)
		require.NoError(t, err)
		for has, needs := range fields {
			require.NotNil(t, d.(protoreflect.MessageDescriptor).Fields().ByName(has))
			require.NotNil(t, d.(protoreflect.MessageDescriptor).Fields().ByName(needs))
		}
	}
}

// TestStoresMayBeAlone checks that bb_storage accepts any subset of stores, since it is both storage and frontend.
func TestStoresMayBeAlone(t *testing.T) {
	s, err := Load()
	require.NoError(t, err)
	with := func(rest string) error {
		return s.check("storage", []byte(`{"grpcServers":[{"authenticationPolicy":{"allow":{}}}],`+rest+`}`))
	}
	require.NoError(t,
		with(`"actionCache":{"backend":{"error":{}},"getAuthorizer":{"allow":{}},"putAuthorizer":{"allow":{}}}`))
	require.NoError(t,
		with(`"schedulers":{"":{"endpoint":{"address":"scheduler:8982"}}},"executeAuthorizer":{"allow":{}}`))
	require.EqualError(t, with(`"schedulers":{"":{"endpoint":{"address":"scheduler:8982"}}}`),
		"the field executeAuthorizer is required if schedulers is set")
}

// TestUnusable checks values of the right types with which programs exit at once or refuse each other.
func TestUnusable(t *testing.T) {
	s, err := Load()
	require.NoError(t, err)
	blocks := func(store, local string) string {
		at := func(name, with string) string {
			return `"` + name + `":{"backend":{"local":{` + with +
				`}},"getAuthorizer":{"allow":{}},"putAuthorizer":{"allow":{}},"findMissingAuthorizer":{"allow":{}}}`
		}
		good := `"keyLocationMapInMemory":{"entries":1},"blocksInMemory":{"blockSizeBytes":1},"newBlocks":1`
		text := at("contentAddressableStorage", good)
		if store == "contentAddressableStorage" {
			text = at(store, local)
		} else {
			text += "," + strings.ReplaceAll(at(store, local), `,"findMissingAuthorizer":{"allow":{}}`, "")
		}
		return `{"grpcServers":[{"authenticationPolicy":{"allow":{}}}],` + text + `}`
	}
	device := func(rest string) string {
		return `"keyLocationMapInMemory":{"entries":1},"blocksOnBlockDevice":{"source":{"file":{"path":"/b","sizeBytes":1048576}},"spareBlocks":3},` + rest
	}
	queue := func(rest string) string {
		return `{"clientGrpcServers":[{"authenticationPolicy":{"allow":{}}}],"workerGrpcServers":[{"authenticationPolicy":{"allow":{}}}],"contentAddressableStorage":{"error":{}},"actionRouter":{"simple":{
			"platformKeyExtractor":{"action":{}},"initialSizeClassAnalyzer":{"defaultExecutionTimeout":"1s","maximumExecutionTimeout":"1s"}}},"executeAuthorizer":{"allow":{}},"modifyDrainsAuthorizer":{"allow":{}},
			"killOperationsAuthorizer":{"allow":{}},"synchronizeAuthorizer":{"allow":{}},"platformQueueWithNoWorkersTimeout":"1s","predeclaredPlatformQueues":[{` + rest + `}]}`
	}
	for _, test := range []struct{ program, text, want string }{
		{"storage", blocks("contentAddressableStorage", device(`"oldBlocks":8,"currentBlocks":24,"newBlocks":3`)), ""},
		{"storage", blocks("contentAddressableStorage", device(`"oldBlocks":8,"currentBlocks":90,"newBlocks":3`)),
			"contentAddressableStorage.backend.local.currentBlocks: the sum of oldBlocks, currentBlocks, newBlocks and " +
				"spareBlocks is 104; it must be at most 100"},
		{
			"storage", blocks("contentAddressableStorage", device(`"oldBlocks":-8`)),
			"oldBlocks: must not be negative, but is -8",
		},
		{
			"storage", blocks("contentAddressableStorage", strings.Replace(device(`"oldBlocks":8`), "1048576", "40960", 1)),
			"source.file.sizeBytes: 40960 bytes are too few for 11 blocks",
		},
		{
			"storage",
			blocks("contentAddressableStorage", strings.Replace(device(`"oldBlocks":8`), `,"sizeBytes":1048576`, "", 1)),
			"the field sizeBytes is required",
		},
		{"storage", blocks("actionCache", device(`"oldBlocks":8,"newBlocks":1`)), ""},
		{
			"storage", blocks("actionCache", device(`"oldBlocks":8,"newBlocks":3`)),
			"actionCache.backend.local.newBlocks: must be 1 for this store, not 3",
		},
		{
			"scheduler",
			queue(`"sizeClasses":[0],"platform":{"properties":[{"name":"a","value":"2"},{"name":"b","value":"1"}]}`), "",
		},
		{
			"scheduler",
			queue(`"sizeClasses":[0],"platform":{"properties":[{"name":"b","value":"1"},{"name":"a","value":"2"}]}`),
			"predeclaredPlatformQueues[0].platform: must be sorted by name, then by value, without duplicates: a=2 must not " +
				"come after b=1",
		},
		{"scheduler", queue(`"sizeClasses":[2,1]`), "sizeClasses: must be sorted, without duplicates: 2 is before 1"},
		{"scheduler", queue(`"sizeClasses":[0,1]`), "sizeClasses: must be positive if there are several"},
		{"scheduler", queue(``), "predeclaredPlatformQueues[0]: the field sizeClasses is required"},
	} {
		err := s.check(test.program, []byte(test.text))
		if test.want == "" {
			require.NoError(t, err, test.text)
			continue
		}
		require.ErrorContains(t, err, test.want, test.text)
	}
}

// FuzzCheck checks that any value is either accepted or refused with an *Error.
func FuzzCheck(f *testing.F) {
	s, err := Load()
	require.NoError(f, err)
	for _, text := range []string{
		`{"grpcServers":[{"tls":{}}]}`,
		`{"contentAddressableStorage":{"backend":{"sharding":{"shards":{"a":{"weight":"1"}}}}}}`, `[`, `{"a":1e999}`,
	} {
		f.Add("storage", text)
	}
	f.Fuzz(func(t *testing.T, program, text string) {
		if program != "storage" && program != "worker" {
			program = "scheduler"
		}
		if err := s.check(program, []byte(text)); err != nil {
			var wrong *Error
			require.ErrorAs(t, err, &wrong)
			require.NotEmpty(t, wrong.Problem)
		}
	})
}
