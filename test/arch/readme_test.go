package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// A path in backticks, relative to the repository, optionally followed by identifiers declared in it, in
	// parentheses.
	namedPath = regexp.MustCompile(
		"`((?:\\.ci|\\.github|apis|cmd|hack|manifests|pkg|test)/[^`\\s]*)`(?:\\s\\(([^)]*)\\))?")
	ident = regexp.MustCompile("`(\\w+)`")
	link  = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// TestDocumentsNameWhatExists checks that paths, identifiers and links in developer documentation exist.
func TestDocumentsNameWhatExists(t *testing.T) {
	const root = "../.."
	decisions, err := filepath.Glob(filepath.Join(root, "pkg/*/DECISIONS.md"))
	require.NoError(t, err)
	require.NotEmpty(t, decisions)
	for _, file := range append(decisions, root+"/pkg/README.md", root+"/.github/CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		document, err := filepath.Rel(root, file)
		require.NoError(t, err)
		found := namedPath.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, found, document)
		for _, m := range found {
			path := filepath.Join(root, m[1])
			if files, err := filepath.Glob(path); err != nil || len(files) == 0 {
				t.Errorf("%s names %s, which does not exist", document, m[1])
				continue
			}
			declared := map[string]bool{}
			names := ident.FindAllStringSubmatch(m[2], -1)
			if len(names) > 0 {
				declared = declares(t, path)
			}
			for _, name := range names {
				if !declared[name[1]] {
					t.Errorf("%s names %s of %s, which does not declare it", document, name[1], m[1])
				}
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(document), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", document, m[1], err)
			}
		}
	}
}

// TestREADMENamesEveryPackage checks that each package directly below pkg is listed in pkg/README.md.
func TestREADMENamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("../../pkg/README.md")
	require.NoError(t, err)
	entries, err := os.ReadDir("../../pkg")
	require.NoError(t, err)
	for _, e := range entries {
		if name := "`pkg/" + e.Name(); e.IsDir() && !strings.Contains(string(text), name+"`") &&
			!strings.Contains(string(text), name+"/") {
			t.Errorf("pkg/README.md does not mention pkg/%s", e.Name())
		}
	}
}

// declares returns the functions, methods, types, variables and constants declared in a Go file.
func declares(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, n := range s.Names {
						names[n.Name] = true
					}
				}
			}
		}
	}
	return names
}
