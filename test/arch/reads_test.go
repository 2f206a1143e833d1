package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unbounded are functions that read a source to its end, whatever its size.
var unbounded = map[string]bool{
	"io.ReadAll":         true,
	"io/ioutil.ReadAll":  true,
	"os.ReadFile":        true,
	"io/ioutil.ReadFile": true,
	"io/fs.ReadFile":     true,
}

// allowedReads are the exceptions: the number of such calls in a package, and the reason. Paths below /proc/ and
// /sys/ do not count.
var allowedReads = map[string]struct {
	calls int
	why   string
}{
	"pkg/node/agent":        {2, "/etc/os-release and the machine's ID, which are the administrator's"},
	"pkg/node/pod/eviction": {4, "files of /proc and of cgroups, which the kernel writes"},
	"pkg/node/network": {
		3, "sysctls, which the kernel writes, and the agent's own records of pods in the run directory",
	},
	"pkg/node/pod":       {2, "the host's /etc/hosts and resolv.conf, which are the administrator's"},
	"pkg/node/pod/probe": {1, "a LimitReader: what a probe answers beyond the limit is cut, not refused"},
	"pkg/node/runtime/containerd": {
		4, "files of cgroups, which the kernel writes, and the shim, which is embedded in the program",
	},
	"pkg/node/runtime/fake":        {1, "a runtime for tests"},
	"pkg/node/runtime/shim":        {1, "the shim's own state, in a directory that only root can write"},
	"pkg/node/runtime/shim/server": {1, "a cgroup's file, which the kernel writes"},
	"pkg/cli/socket":               {1, "a LimitReader: as much of an answer as the caller asked for"},
	"pkg/cli/manual":               {1, "pages that are embedded in the program"},
	"pkg/cli":                      {1, "the certificate authority that the user's own kubeconfig names"},
	"pkg/systems/workers/worker": {
		4, "LimitReaders: it imports only the standard library, for programs of other modules",
	},
	"pkg/systems/workers/sender": {2, "LimitReaders, for the same reason"},
	"pkg/cli/bundle": {
		2, "a SectionReader and a LimitReader: logs and answers are cut where a bundle takes no more",
	},
	"pkg/base/pki": {2, "keys and certificates that this process wrote, 0600"},
	"pkg/server":   {2, "a file of /proc, and a certificate that this process wrote"},
}

// TestReadsAreBounded checks that only pkg/base/bounded, tests and tools call the unbounded functions. It is not a
// rule of golangci-lint's forbidigo, because building that linter takes longer than CI may take.
func TestReadsAreBounded(t *testing.T) {
	const root = "../.."
	found := map[string]int{}
	for _, top := range []string{"apis", "cmd", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil || under(name, "pkg/base/bounded", "pkg/node/runtime/runtimetest") {
				return err
			}
			n, err := unboundedReads(path)
			if n > 0 {
				found[filepath.Dir(name)] += n
			}
			return err
		})
		require.NoError(t, err)
	}
	for name, n := range found {
		if n > allowedReads[name].calls {
			t.Errorf("%s has %d unbounded reads, %d are allowed: use pkg/base/bounded, or say in allowedReads why not", name, n,
				allowedReads[name].calls)
		}
	}
	for name, e := range allowedReads {
		if found[name] == 0 {
			t.Errorf("allowedReads has an exception for %s, which needs none: remove it", name)
		}
		require.NotEmpty(t, e.why, name)
	}
}

// unboundedReads counts the uses of unbounded functions in a file, called or passed as values, except with a path
// in /proc or /sys.
func unboundedReads(path string) (n int, _ error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	imports := map[string]string{} // by the name used in the file
	for _, i := range file.Imports {
		from, _ := strconv.Unquote(i.Path.Value)
		name := from[strings.LastIndex(from, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = from
	}
	ofKernel := map[*ast.SelectorExpr]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			if f, ok := node.Fun.(*ast.SelectorExpr); ok && len(node.Args) == 1 && kernelPath(node.Args[0]) {
				ofKernel[f] = true
			}
		case *ast.SelectorExpr:
			if x, ok := node.X.(*ast.Ident); ok && unbounded[imports[x.Name]+"."+node.Sel.Name] && !ofKernel[node] {
				n++
			}
		}
		return true
	})
	return n, nil
}

// kernelPath reports whether an expression is a path that begins with a literal "/proc/" or "/sys/".
func kernelPath(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return err == nil && (strings.HasPrefix(text, "/proc/") || strings.HasPrefix(text, "/sys/"))
	case *ast.BinaryExpr:
		return kernelPath(e.X)
	case *ast.CallExpr: // fmt.Sprintf("/proc/%d/stat", pid)
		f, ok := e.Fun.(*ast.SelectorExpr)
		return ok && f.Sel.Name == "Sprintf" && len(e.Args) > 0 && kernelPath(e.Args[0])
	}
	return false
}

// TestUnboundedReadsAreFound checks that renamed imports and functions passed as values count, and that reads of
// /proc and /sys do not.
func TestUnboundedReadsAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`import "io"; func f(r io.Reader) { io.ReadAll(r) }`:                                   1,
		`import sys "os"; func f(p string) { sys.ReadFile(p) }`:                                1,
		`import "os"; var read = os.ReadFile`:                                                  1,
		`import "os"; func f() { os.ReadFile("/etc/hosts") }`:                                  1,
		`import "os"; func f(p string) { os.ReadFile("/proc/" + p + "/stat") }`:                0,
		`import ("fmt"; "os"); func f(n int) { os.ReadFile(fmt.Sprintf("/proc/%d/stat", n)) }`: 0,
		`import "example.org/io"; func f() { io.ReadAllOfIt() }`:                               0,
	} {
		path := filepath.Join(t.TempDir(), "f.go")
		require.NoError(t, os.WriteFile(path, []byte("package p\n"+source), 0o600))
		n, err := unboundedReads(path)
		require.NoError(t, err)
		require.Equal(t, want, n, source)
	}
}
