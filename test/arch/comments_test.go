package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxPackageComment is in lines.
const maxPackageComment = 15

// TestCommentsOfDeclarations checks that exported functions and types have a comment that begins with their name, that
// comments of declarations end a sentence, and that packages have a comment of a limited length. The linters godot and
// revive check more, in minutes instead of a second.
func TestCommentsOfDeclarations(t *testing.T) {
	described := map[string]bool{} // by directory
	eachSource(t, func(path string) {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		require.NoError(t, err)
		dir := path[:strings.LastIndexByte(path, '/')]
		if ast.IsGenerated(f) || strings.HasSuffix(path, "_test.go") {
			return
		}
		described[dir] = described[dir] || f.Doc != nil
		if lines := strings.Count(prose(f.Doc), "\n") + 1; lines > maxPackageComment {
			t.Errorf("%s: the package comment has %d lines; the limit is %d", path, lines, maxPackageComment)
		}
		check := func(name string, doc *ast.CommentGroup, named bool, at token.Pos) {
			text := prose(doc)
			switch {
			case text == "" && named:
				t.Errorf("%s: %s has no comment", set.Position(at), name)
			case named && !strings.HasPrefix(text, name+" ") && !strings.HasPrefix(text, name+"'s "):
				t.Errorf("%s: the comment of %s does not begin with its name", set.Position(at), name)
			case text != "" && !strings.ContainsAny(text[len(text)-1:], ".:?!)`") && !strings.Contains(text, "\n\t"):
				t.Errorf("%s: the comment of %s does not end with a period", set.Position(at), name)
			}
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl: // methods are described by their type or interface
				check(d.Name.Name, d.Doc, d.Recv == nil && d.Name.IsExported(), d.Pos())
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						if d.Lparen.IsValid() { // a group has one comment
							check(s.Name.Name, d.Doc, false, s.Pos())
							continue
						}
						check(s.Name.Name, d.Doc, s.Name.IsExported(), s.Pos())
					}
				}
			}
		}
	})
	for dir, is := range described {
		if !is {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// prose returns a comment without the markers of generators.
func prose(c *ast.CommentGroup) string {
	lines := strings.Split(c.Text(), "\n")
	return strings.TrimSpace(strings.Join(slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "+")
	}), "\n"))
}
