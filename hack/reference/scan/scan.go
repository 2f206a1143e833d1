// Package scan finds the metrics and the events of the program in its source, for the manual's pages that list them.
//
// Its invariant: it reads syntax only, so a metric or an event whose name is computed is not found.
package scan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Metric is a metric of /metrics.
type Metric struct{ Name, Help string }

// Event is a reason of events that the program writes. Kind is Normal or Warning.
type Event struct{ Reason, Kind, Message, Package string }

// Source scans the Go files below the folders of a repository, except tests.
func Source(root string, folders ...string) (metrics []Metric, events []Event, err error) {
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if d.Name() == "testdata" || strings.HasSuffix(path, "pkg/testing") {
				return filepath.SkipDir
			}
			p, err := parse(path)
			if err != nil || p == nil {
				return err
			}
			room, err := filepath.Rel(root, path)
			metrics = append(metrics, p.metrics()...)
			events = append(events, p.events(filepath.ToSlash(room))...)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	slices.SortFunc(metrics, func(a, b Metric) int { return strings.Compare(a.Name+a.Help, b.Name+b.Help) })
	slices.SortFunc(events, func(a, b Event) int {
		return strings.Compare(a.Reason+a.Package+a.Message, b.Reason+b.Package+b.Message)
	})
	return slices.CompactFunc(metrics, func(a, b Metric) bool { return a.Name == b.Name }),
		slices.CompactFunc(events, func(a, b Event) bool { return a.Reason == b.Reason && a.Package == b.Package }), nil
}

// folder is the syntax of one package.
type folder struct {
	files     []*ast.File
	constants map[string]string
}

func parse(dir string) (*folder, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	p := &folder{constants: map[string]string{}}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
		ast.Inspect(file, p.constant)
	}
	return p, nil
}

func (p *folder) constant(n ast.Node) bool {
	if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
		for i, name := range spec.Names {
			if text, ok := p.text(spec.Values[i]); ok {
				p.constants[name.Name] = text
			}
		}
	}
	return true
}

// text returns the value of an expression of string literals and constants.
func (p *folder) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok := p.constants[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, ok := p.text(e.X)
		right, also := p.text(e.Y)
		return left + right, ok && also
	}
	return "", false
}

func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func (p *folder) metrics() (out []Metric) {
	prefixes := map[string]string{} // by function that makes descriptions: func(name, help string) *Desc
	for _, file := range p.files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || f.Type.Params.NumFields() < 2 {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok && called(c) == "NewDesc" && len(c.Args) > 1 {
					if sum, ok := c.Args[0].(*ast.BinaryExpr); ok {
						if prefix, ok := p.text(sum.X); ok {
							prefixes[f.Name.Name] = prefix
						}
					}
				}
				return true
			})
		}
	}
	add := func(prefix string, name, help ast.Expr) {
		n, ok := p.text(name)
		h, also := p.text(help)
		if ok && also {
			out = append(out, Metric{prefix + n, h})
		}
	}
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				prefix, wraps := prefixes[called(n)]
				if (wraps || called(n) == "NewDesc") && len(n.Args) > 1 {
					add(prefix, n.Args[0], n.Args[1])
				}
			case *ast.CompositeLit:
				if name, help := field(n, "Name"), field(n, "Help"); name != nil && help != nil {
					add("", name, help)
				}
			}
			return true
		})
	}
	return out
}

func field(c *ast.CompositeLit, name string) ast.Expr {
	for _, e := range c.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

func (p *folder) events(room string) (out []Event) {
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for i, arg := range c.Args {
				kind, ok := arg.(*ast.SelectorExpr)
				if !ok || !strings.HasPrefix(kind.Sel.Name, "EventType") || i+1 >= len(c.Args) {
					continue
				}
				reason, ok := p.text(c.Args[i+1])
				if !ok {
					continue
				}
				e := Event{Reason: reason, Kind: strings.TrimPrefix(kind.Sel.Name, "EventType"), Package: room}
				if i+2 < len(c.Args) {
					e.Message = p.shown(c.Args[i+2])
				}
				out = append(out, e)
			}
			return true
		})
	}
	return out
}

// shown returns the constant part of a message, with ... for the rest.
func (p *folder) shown(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return strings.ReplaceAll(p.shown(e.X)+p.shown(e.Y), "......", "...")
	case *ast.CallExpr:
		if len(e.Args) > 0 && strings.HasPrefix(called(e), "Sprint") {
			return p.shown(e.Args[0])
		}
	}
	if text, ok := p.text(e); ok {
		return text
	}
	return "..."
}
