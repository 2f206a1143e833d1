package check

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/packed"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func example(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../../manifests/examples/buildbarn/config.yaml")
	require.NoError(t, err)
	var c struct{ Data map[string]string }
	require.NoError(t, yaml.Unmarshal(text, &c))
	return c.Data
}

func (c *Checker) files(ctx context.Context, all map[string]string, component, instance string,
	fields bool) (map[string]string, error) {
	v, err := c.verdict(ctx, Request{All: all, Component: component, Instance: instance, Fields: fields})
	return v.Files, err
}

func (c *Checker) verdict(ctx context.Context, r Request) (Verdict, error) {
	if err := c.Check(ctx, "ns", func() Request { return r }); err != nil {
		return Verdict{}, err
	}
	v, known, err := c.Known(r)
	if !known {
		err = errors.New("there is no verdict")
	}
	return v, err
}

func TestExampleIsAccepted(t *testing.T) {
	c, files := New(packed.Open), example(t)
	for _, component := range []string{"scheduler", "storage", "frontend", "worker", "browser"} {
		used, err := c.files(t.Context(), files, component, "shell", true)
		require.NoError(t, err, component)
		require.NotEmpty(t, used)
	}
}

// TestRenderedIsAccepted checks that the rendered files of pkg/systems/buildbarn/config (in its testdata) pass the
// same check as users' files.
func TestRenderedIsAccepted(t *testing.T) {
	c := New(packed.Open)
	folders, err := filepath.Glob("../config/testdata/*")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, dir := range folders {
		files := map[string]string{}
		list, err := filepath.Glob(dir + "/*")
		require.NoError(t, err)
		for _, path := range list {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			files[filepath.Base(path)] = string(text)
		}
		for name := range files {
			component, instance, _ := strings.Cut(strings.TrimSuffix(name, ".jsonnet"), "-")
			if !strings.HasSuffix(name, ".jsonnet") || component == "runner" {
				continue // a runner's file is checked together with its worker's
			}
			_, err := c.files(t.Context(), files, component, instance, true)
			require.NoError(t, err, "%s/%s", dir, name)
		}
	}
}

func TestProblemsAreSaidWithTheirPlace(t *testing.T) {
	c, good := New(packed.Open), example(t)
	for _, test := range []struct{ file, old, new, want string }{
		{
			"storage.jsonnet", "oldBlocks: 8", "oldBlock: 8",
			"storage.jsonnet:7: actionCache.backend.local.oldBlock: there is no such field; is oldBlocks meant?; if the image " +
				"is of another version",
		},
		{
			"storage.jsonnet", "oldBlocks: 8", "oldBlocks: 'many'",
			`actionCache.backend.local.oldBlocks: must be an integer (int32), not "many"`,
		},
		{
			"storage.jsonnet", "grpcServers: common.listen(8981)", "grpcServers: common.listn(8981)",
			"storage.jsonnet:15: Field does not exist: listn",
		},
		{"storage.jsonnet", "newBlocks, mapBytes", "newBlocks, mapBytes, more", ": Missing argument: blocksBytes"},
		{
			"storage.jsonnet", "getAuthorizer: common.allow", "getAuthorizer: {}",
			"contentAddressableStorage.getAuthorizer: has none of allow, instanceNamePrefix, deny",
		},
		{
			"storage.jsonnet", "putAuthorizer: common.allow", "// no",
			": contentAddressableStorage: the field putAuthorizer is required",
		},
		// The variable is not used, and so not evaluated.
		{"storage.jsonnet", "local common", "local x = std.extVar('POD_NAME');\nlocal common", ""},
		{
			"storage.jsonnet", "maximumMessageSizeBytes: common.maximumMessageSizeBytes",
			"maximumMessageSizeBytes: std.extVar('POD_NAME')",
			": Undefined external variable: POD_NAME; the container has HOME, HOSTNAME",
		},
		{
			"common.libsonnet", "maximumMessageSizeBytes: 2 * 1024 * 1024", "maximumMessageSizeBytes: 2 / 0",
			"common.libsonnet:21: Division by zero.",
		},
		{"common.libsonnet", "healthCheckService: 'buildbarn'", "tls: {}, alts: {}", "grpcServers[0]: "},
		{
			"common.libsonnet", "authenticationPolicy: { allow: {} },\n    healthCheckService", "healthCheckService",
			"grpcServers[0]: the field authenticationPolicy is required",
		},
	} {
		files := maps.Clone(good)
		files[test.file] = strings.Replace(good[test.file], test.old, test.new, 1)
		require.NotEqual(t, good, files, test.old)
		_, err := c.files(t.Context(), files, "storage", "", true)
		if test.want == "" {
			require.NoError(t, err, test.new)
			continue
		}
		var invalid *Invalid
		require.ErrorAs(t, err, &invalid, test.new)
		require.Contains(t, invalid.Problem, test.want)
	}
	good["runner-shell.jsonnet"] = "{ buildDirectoryPath: '/worker/build', grpcServers: 1 }"
	_, err := c.files(t.Context(), good, "worker", "shell", true)
	require.EqualError(t, err, "runner-shell.jsonnet:1: grpcServers: must be a list, not 1")
}

// TestFactsHaveTheirLines checks the facts about the farm and their locations in the files, up to the limit.
func TestFactsHaveTheirLines(t *testing.T) {
	c, files := New(packed.Open), example(t)
	v, err := c.verdict(t.Context(), Request{All: files, Component: "worker", Instance: "shell", Fields: true})
	require.NoError(t, err)
	require.Len(t, v.Facts, 2)
	worker, runner := v.Facts[0], v.Facts[1]
	require.Equal(t,
		[]protocol.Server{
			{
				Place: protocol.Place{
					Field: "global.diagnosticsHttpServer.httpServers[0].listenAddresses[0]", Line: "common.libsonnet:31",
				}, Address: ":9980",
			},
		}, worker.Servers)
	require.Contains(t, worker.Clients, protocol.Client{
		Place: protocol.Place{Field: "scheduler.address", Line: "worker-shell.jsonnet:6"}, Address: "scheduler:8983",
	})
	require.Len(t, worker.Clients, 4, "two of storage, each once, the scheduler and the runner")
	require.Len(t, worker.Queues, 1)
	require.Equal(t,
		[]protocol.Server{
			{
				Place: protocol.Place{Field: "grpcServers[0].listenPaths[0]", Line: "runner-shell.jsonnet:4"},
				Path:  "/worker/runner",
			},
		}, runner.Servers)

	storage := "(import 'storage.jsonnet') { grpcServers: [{ listenAddresses: [':%d' % i for i in std.range(1, 201)], " +
		"authenticationPolicy: { allow: {} } }] }"
	many := map[string]string{
		"storage.jsonnet":  strings.ReplaceAll(storage, "storage.jsonnet", "old.libsonnet"),
		"old.libsonnet":    files["storage.jsonnet"],
		"common.libsonnet": files["common.libsonnet"],
	}
	v, err = c.verdict(t.Context(), Request{All: many, Component: "storage", Fields: true})
	require.NoError(t, err)
	require.Nil(t, v.Facts[0], "all or none")
	v, err = c.verdict(t.Context(), Request{All: files, Component: "storage"})
	require.NoError(t, err)
	require.Nil(t, v.Facts[0], "of fields that are not compared nothing is known")
}

// TestFieldsOfOtherVersions checks that unknown fields are accepted if fields are not checked, and that files which
// cannot be evaluated are refused.
func TestFieldsOfOtherVersions(t *testing.T) {
	c, files := New(packed.Open), map[string]string{"storage.jsonnet": "{ ofTomorrow: 1 }"}
	_, err := c.files(t.Context(), files, "storage", "", true)
	require.ErrorContains(t, err, "ofTomorrow: there is no such field; there are: actionCache, contentAddressableStorage,")
	_, err = c.files(t.Context(), files, "storage", "", false)
	require.NoError(t, err)
	files["storage.jsonnet"] = "{ a: error 'no' }"
	_, err = c.files(t.Context(), files, "storage", "", false)
	require.EqualError(t, err, "storage.jsonnet:1: no")
}

// TestHostileFilesEnd checks that no file exceeds the limits of the checking process, and that the error names the
// limit.
func TestHostileFilesEnd(t *testing.T) {
	c := New(packed.Open)
	for name, test := range map[string]struct{ text, want string }{
		"recursion": {"local f(x) = 1 + f(x + 1); f(1)", "max stack frames exceeded"},
		"memory":    {"std.range(1, 1e9)", "takes more than 320 MiB of memory"},
		"strings":   {"std.foldl(function(a, _) a + a, std.range(1, 60), 'ab')", "takes more than 320 MiB of memory"},
		"time": {
			"std.length([x for x in std.range(1, 100000) for y in std.range(1, 100000) if false])",
			"takes more than 2 s of processor time",
		},
		"output": {
			"local s = std.foldl(function(a, _) a + a, std.range(1, 20), 'abc'); [s, s]", "larger than 4 MiB of JSON",
		},
		"the host":       {"importstr '/etc/passwd'", "the file /etc/passwd is missing; there are: storage.jsonnet"},
		"the host again": {"importstr '/tls/../etc/passwd'", "the file /tls/../etc/passwd is missing"},
		"traces": {
			"local t(x) = std.trace(std.repeat('x', 8192), x); std.range(1, t(1e9))", "takes more than 320 MiB of memory",
		},
		"a native": {"std.native('exec')('id')", "null"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.files(t.Context(), map[string]string{"storage.jsonnet": test.text}, "storage", "", true)
			var invalid *Invalid
			require.ErrorAs(t, err, &invalid)
			require.Contains(t, invalid.Problem, test.want)
			require.True(t, strings.HasPrefix(invalid.Problem, "storage.jsonnet"), invalid.Problem)
		})
	}
	// The parser is recursive, and this nests deeply without brackets. Any of the limits may stop it.
	_, err := c.files(t.Context(), map[string]string{"storage.jsonnet": strings.Repeat("local a=1;", 1<<16) + "a"},
		"storage", "", true)
	var invalid *Invalid
	require.ErrorAs(t, err, &invalid)
	_, err = c.files(t.Context(), example(t), "storage", "", true)
	require.NoError(t, err, "others are checked as before")
}

func TestVerdictsAreRemembered(t *testing.T) {
	opened := 0
	c := New(func() (*os.File, error) { opened++; return packed.Open() })
	files := example(t)
	for range 3 {
		_, err := c.files(t.Context(), files, "storage", "", true)
		require.NoError(t, err)
	}
	require.Equal(t, 1, opened)
	files["common.libsonnet"] += "// changed"
	used, err := c.files(t.Context(), files, "storage", "", true)
	require.NoError(t, err)
	require.Contains(t, used["common.libsonnet"], "// changed")
	require.Equal(t, 2, opened)
}

// TestFilesThatAreRead checks that a verdict has the files that a program may read, whichever values it needs, and no
// others.
func TestFilesThatAreRead(t *testing.T) {
	c := New(packed.Open)
	files := map[string]string{
		"storage.jsonnet": "local c = import '/config/./common.libsonnet'; // it's here\n{ a: if std.extVar('HOME') == " +
			"'/x' then importstr 'a.txt', t: |||\n  }\n|||, v: @'a''{', ca: importstr '/tls/ca.crt', d: 'it\\'s {' /* } */ }",
		"common.libsonnet": "{ x: importbin './b' }", "a.txt": "it's {", "b": "{", "unused.jsonnet": "{",
		"scheduler.jsonnet": "{}",
	}
	used, err := c.files(t.Context(), files, "storage", "", false)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"storage.jsonnet", "common.libsonnet", "a.txt", "b"},
		slices.Collect(maps.Keys(used)))

	many := map[string]string{"storage.jsonnet": "{}"}
	for i := range 100 {
		name := strings.Repeat("n", 200) + strconv.Itoa(i)
		many[name], many["storage.jsonnet"] = "", many["storage.jsonnet"]+" + { x: importstr '"+name+"' }"
	}
	_, err = c.files(t.Context(), many, "storage", "", false)
	require.EqualError(t, err, "storage.jsonnet: the names of its imported files are longer than 16 KiB")

	for text, want := range map[string]string{
		"":               "storage.jsonnet:1: Unexpected end of file",
		"\n{ a: [1, 2 }": "storage.jsonnet:2: ",
		"{}\n}":          "storage.jsonnet:2: ",
		"{ a: 'b }":      "storage.jsonnet:1: Unterminated String",
		"{ /* }":         "storage.jsonnet:1: Multi-line comment has no terminating */",
		"\n{ a: if false then import 'x.libsonnet' }": "storage.jsonnet:2: the file x.libsonnet is missing; " +
			"there are: storage.jsonnet",
		"import '/tls/ca.crt'":   "/tls/ca.crt:1: ",
		strings.Repeat("[", 300): "storage.jsonnet:1: ",
	} {
		_, err := c.files(t.Context(), map[string]string{"storage.jsonnet": text}, "storage", "", false)
		require.ErrorContains(t, err, want, "%.40q", text)
	}
	_, err = c.files(t.Context(), nil, "storage", "", false)
	require.EqualError(t, err, "storage.jsonnet: the file storage.jsonnet is missing; there are: none")
}

// TestFailuresAreNoVerdict checks that a failure of the checking process does not make the files invalid.
func TestFailuresAreNoVerdict(t *testing.T) {
	open := func() (*os.File, error) { return os.Open("/bin/true") }
	c := New(func() (*os.File, error) { return open() })
	files := example(t)
	_, err := c.files(t.Context(), files, "storage", "", true)
	var invalid *Invalid
	require.NotErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "the configuration could not be checked")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	open = packed.Open
	_, err = c.files(ctx, files, "storage", "", true)
	require.ErrorIs(t, err, context.Canceled)
	_, err = c.files(t.Context(), files, "storage", "", true)
	require.NoError(t, err)
}
