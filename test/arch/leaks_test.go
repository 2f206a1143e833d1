package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowedGoroutines are packages that start goroutines and whose own tests do not check for leaks, with the reason.
var allowedGoroutines = map[string]string{
	"pkg/node/network":                  "test/netns looks for them",
	"pkg/node/tables":                   "test/netns looks for them",
	"pkg/node/runtime/feed":             "the tests of the runtimes do",
	"pkg/node/runtime/runtimetest":      "the tests of the runtimes do",
	"pkg/node/host/shutdown/logindtest": "the tests that import it do",
	"pkg/systems/buildbarn/check/program": "it is a process of its own, which the tests of pkg/systems/buildbarn/check " +
		"run",
	"pkg/client/clienttest":            "the tests that import it do",
	"pkg/testing/controlplane":         "the tests that import it do",
	"pkg/state/encryption/kms/kmstest": "the tests that import it do",
	"pkg/node/netpolicy":               "test/netns looks for them",
	"pkg/node/proxy":                   "test/netns looks for them",
	"pkg/node/proxy/announce":          "the tests of pkg/node/proxy do",
	"pkg/base/run/runtest":             "the tests that import it do",
}

// TestGoroutinesAreLookedFor checks that the tests of each package import goleak if its code or tests start goroutines.
func TestGoroutinesAreLookedFor(t *testing.T) {
	const root = "../.."
	starts, looks := map[string]bool{}, map[string]bool{}
	for _, top := range []string{"apis", "cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			starts[name] = starts[name] || startsGoroutine(file)
			for _, i := range file.Imports {
				if p, err := strconv.Unquote(i.Path.Value); err == nil && p == "go.uber.org/goleak" {
					looks[name] = true
				}
			}
			return nil
		}))
	}
	for name, some := range starts {
		if some && !looks[name] && allowedGoroutines[name] == "" {
			t.Errorf("%s starts goroutines, and no test of it looks for leaked ones: call goleak.VerifyTestMain, or say in "+
				"allowedGoroutines who does", name)
		}
	}
	for name := range allowedGoroutines {
		if !starts[name] || looks[name] {
			t.Errorf("allowedGoroutines has an exception for %s, which needs none: remove it", name)
		}
	}
}

// startsGoroutine reports whether a file has a go statement, or calls the method Go of a group.
func startsGoroutine(file *ast.File) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
				found = true
			}
		}
		return !found
	})
	return found
}
