package apiserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// docs maps "package.Type" and "package.Type.Field" to descriptions.
type docs map[string]string

// docsOf reads the descriptions of Coracle's own kinds from the comments in their Go source.
func docsOf(t *kind.Table) docs {
	d := docs{}
	for _, r := range t.All() {
		if r.Source != "" {
			d.read(reflect.TypeOf(r.New()).Elem().PkgPath(), r.Source)
		}
	}
	return d
}

func (d docs) read(pkg, source string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return // cannot happen with source that compiles; only descriptions would be missing
	}
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			t := s.(*ast.TypeSpec)
			comment := t.Doc
			if comment == nil {
				comment = g.Doc
			}
			name := pkg + "." + t.Name.Name
			d[name] = prose(comment)
			st, ok := t.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range st.Fields.List {
				for _, n := range f.Names {
					d[name+"."+n.Name] = prose(f.Doc)
				}
			}
		}
	}
}

func (d docs) ofType(t reflect.Type) string { return d[t.PkgPath()+"."+t.Name()] }

func (d docs) ofField(t reflect.Type, field string) string {
	return d[t.PkgPath()+"."+t.Name()+"."+field]
}

// prose joins a comment into one line and drops marker lines ("+...").
func prose(c *ast.CommentGroup) string {
	var lines []string
	for line := range strings.Lines(c.Text()) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "+") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
