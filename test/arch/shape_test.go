package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// The limits for code that is read in one go. Test functions and files may be longer, because tables have no branches.
const (
	maxColumns       = 120
	maxFunctionLines = 80
	maxFileLines     = 450
)

// TestShape checks the lengths of lines, functions and files. It ignores lines of raw strings and generated files.
func TestShape(t *testing.T) {
	eachSource(t, func(path string) {
		src, err := os.ReadFile(path)
		require.NoError(t, err)
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, src, parser.ParseComments)
		require.NoError(t, err)
		if ast.IsGenerated(f) {
			return
		}
		raw := map[int]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			if b, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(b.Value, "`") {
				for l := set.Position(b.Pos()).Line; l <= set.Position(b.End()).Line; l++ {
					raw[l] = true
				}
			}
			return true
		})
		lines := strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
		for i, l := range lines {
			if n := utf8.RuneCountInString(l); n > maxColumns && !raw[i+1] {
				t.Errorf("%s:%d has %d columns; the limit is %d", path, i+1, n, maxColumns)
			}
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		if len(lines) > maxFileLines {
			t.Errorf("%s has %d lines; the limit is %d", path, len(lines), maxFileLines)
		}
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from, to := set.Position(d.Pos()).Line, set.Position(d.End()).Line
			if n := to - from + 1; n > maxFunctionLines {
				t.Errorf("%s:%d: %s has %d lines; the limit is %d", path, from, d.Name.Name, n, maxFunctionLines)
			}
		}
	})
}

// eachSource calls f with the path of each Go file of the project.
func eachSource(t *testing.T, f func(path string)) {
	t.Helper()
	for _, top := range []string{"apis", "cmd", "hack", "pkg", "test"} {
		root := filepath.Join("../..", top)
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ".go") {
				f(path)
			}
			return err
		}))
	}
}
