package upstream_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

type stub struct {
	gvr    schema.GroupVersionResource
	object *unstructured.Unstructured
}

// stubs reads the table of upstream's test of storage paths: an object in a namespace for each version of each
// kind. It parses the table from the module's source, because linking its package would link the API server.
func stubs(t *testing.T, namespace string) (all []stub) {
	t.Helper()
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	out, err := command.Output()
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(),
		filepath.Join(strings.TrimSpace(string(out)), "test/integration/etcd/data.go"), nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		entry, is := n.(*ast.KeyValueExpr)
		if !is {
			return true
		}
		key, isCall := entry.Key.(*ast.CallExpr)
		value, isStruct := entry.Value.(*ast.CompositeLit)
		if !isCall || !isStruct || len(key.Args) != 3 {
			return true
		}
		if f, named := key.Fun.(*ast.Ident); !named || f.Name != "gvr" {
			return true
		}
		s := stub{
			gvr: schema.GroupVersionResource{
				Group:    text(t, key.Args[0], namespace),
				Version:  text(t, key.Args[1], namespace),
				Resource: text(t, key.Args[2], namespace),
			},
		}
		for _, field := range value.Elts {
			if pair := field.(*ast.KeyValueExpr); pair.Key.(*ast.Ident).Name == "Stub" {
				s.object = &unstructured.Unstructured{}
				require.NoError(t, yaml.Unmarshal([]byte(text(t, pair.Value, namespace)), &s.object.Object), "%s", s.gvr)
			}
		}
		if s.object != nil {
			all = append(all, s)
		}
		return false
	})
	require.Greater(t, len(all), 80)
	return all
}

// text evaluates a string of the table, made of literals, the namespace and variables that are images.
func text(t *testing.T, e ast.Expr, namespace string) string {
	t.Helper()
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		require.NoError(t, err)
		return s
	case *ast.BinaryExpr:
		return text(t, e.X, namespace) + text(t, e.Y, namespace)
	case *ast.Ident:
		if e.Name == "namespace" {
			return namespace
		}
		return "registry.example.com/" + strings.ToLower(e.Name) + ":1"
	}
	require.FailNow(t, fmt.Sprintf("upstream's table has an expression of another form: %T", e))
	return ""
}
