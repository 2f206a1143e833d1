package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/coracle-dev/coracle/"

type pkg struct {
	ImportPath    string
	Imports, Deps []string
}

// packages returns the module's packages with their imports and dependencies. The go command runs once.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listed()
	require.NoError(t, err)
	return all
}

var listed = sync.OnceValues(func() ([]pkg, error) {
	command := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"...")
	command.Env = append(os.Environ(), "CGO_ENABLED=1") // without it there is no shim
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

// under reports whether path is one of the roots or below one.
func under(path string, roots ...string) bool {
	for _, root := range roots {
		if path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

func ours(paths ...string) []string {
	full := make([]string, len(paths))
	for i, p := range paths {
		full[i] = module + p
	}
	return full
}

// TestLibrariesStayInTheirRooms checks that external libraries with one purpose are imported only by the package for
// that purpose.
func TestLibrariesStayInTheirRooms(t *testing.T) {
	rooms := []struct {
		library string
		rooms   []string
	}{
		{"go.etcd.io/etcd", ours("pkg/store", "hack/images/etcd")},
		{"github.com/containerd", ours("pkg/agent/runtime/containerd", "pkg/agent/runtime/shim", "cmd/coracle-shim", "pkg/kontrol/artifact")},
		{"github.com/opencontainers/runc", ours("pkg/agent/runtime/shim", "cmd/coracle-shim")},
		{"github.com/vishvananda", ours("pkg/agent/network", "pkg/proxy")},
		{"github.com/google/nftables", ours("pkg/agent/network", "pkg/proxy", "pkg/netpolicy")},
		{"k8s.io/kubernetes", ours("pkg/kind/builtin", "pkg/registry", "pkg/admission", "pkg/apiserver")},
		{"k8s.io/apiserver", ours("pkg/kind", "pkg/encryption", "pkg/webhook", "pkg/registry", "pkg/client/local", "pkg/admission", "pkg/apiserver", "pkg/server")},
		{"k8s.io/kubectl", ours("pkg/ctl")},
		{"github.com/miekg/dns", ours("pkg/dns")},
		{"github.com/godbus/dbus", ours("pkg/agent/shutdown")},
		{"github.com/bazelbuild/remote-apis", ours("pkg/buildbarn/remote")},
		// The factory is pkg/client/local's: upstream's links the informers of all groups, 4.5 MB.
		{"k8s.io/client-go/informers", ours("pkg/client/local", "pkg/webhook", "pkg/admission")},
		{"github.com/google/go-jsonnet", ours("pkg/buildbarn/check/program")},
	}
	for _, p := range packages(t) {
		for _, rule := range rooms {
			if under(p.ImportPath, rule.rooms...) {
				continue
			}
			for _, i := range p.Imports {
				if under(i, rule.library) {
					t.Errorf("%s imports %s, which is for %s alone", p.ImportPath, i, strings.Join(rule.rooms, ", "))
				}
			}
		}
	}
}

// TestImportsPointOneWay checks that no package depends, directly or indirectly, on packages above or beside it.
func TestImportsPointOneWay(t *testing.T) {
	engine := ours("pkg/store", "pkg/registry", "pkg/client/local", "pkg/admission", "pkg/apiserver", "pkg/server")
	rules := []struct{ from, never []string }{
		{ours("apis"), ours("pkg", "cmd")},
		{ours("pkg/kind"), append(engine, ours("pkg/cache", "pkg/client", "pkg/agent", "pkg/reconcile", "pkg/scheduler")...)},
		{ours("pkg/store"), ours("pkg/cache", "pkg/registry", "pkg/apiserver", "pkg/server", "pkg/agent")},
		{ours("pkg/cache"), engine},
		{ours("pkg/encryption"), append(engine, ours("pkg/agent", "pkg/client", "pkg/ctl", "pkg/control")...)},
		{ours("pkg/client", "pkg/reconcile", "pkg/scheduler", "pkg/agent", "pkg/proxy", "pkg/netpolicy", "pkg/dns", "pkg/ingress", "pkg/ctl"), engine},
		{ours("pkg/client/local"), ours("pkg/admission", "pkg/apiserver", "pkg/server", "pkg/agent", "pkg/reconcile", "pkg/scheduler")},
		{ours("pkg/admission"), ours("pkg/apiserver", "pkg/server", "pkg/agent", "pkg/reconcile", "pkg/scheduler")},
		{ours("pkg/registry"), ours("pkg/apiserver", "pkg/server", "pkg/agent", "pkg/reconcile", "pkg/scheduler")},
		{ours("pkg/kontrol"), append(engine, ours("pkg/agent", "pkg/scheduler", "pkg/ctl", "pkg/reconcile", "pkg/rest")...)},
		{ours("pkg/rest"), append(engine, ours("pkg/agent", "pkg/scheduler", "pkg/ctl", "pkg/reconcile")...)},
		{ours("pkg/apiserver"), ours("pkg/server", "pkg/agent", "pkg/reconcile", "pkg/scheduler")},
		{ours("pkg/run", "pkg/pki", "pkg/version"), ours("pkg/kind", "pkg/cache", "pkg/client", "pkg/server", "pkg/agent")},
		{ours("apis", "cmd", "pkg/server", "pkg/agent", "pkg/ctl"), ours("pkg/testcluster")},
		{ours("pkg/buildbarn/remote"), append(engine, ours("apis", "pkg/kind", "pkg/client", "pkg/agent", "pkg/ctl", "pkg/reconcile")...)},
		{ours("cmd/coracle"), ours("pkg/buildbarn/check/program", "pkg/buildbarn/schema")},                                                                     // they are in a process of their own
		{ours("pkg/buildbarn/fit"), append(engine, ours("pkg/kind", "pkg/client", "pkg/reconcile", "pkg/buildbarn/schema", "pkg/buildbarn/check/program")...)}, // it is pure
		{ours("pkg/buildbarn/check/program", "pkg/buildbarn/schema"), append(engine, ours("apis", "pkg/kind", "pkg/client", "pkg/reconcile")...)},
		{ours("cmd/coracle-shim"), append(ours("pkg/kind", "pkg/cache", "pkg/client", "pkg/ctl"), append(engine, "k8s.io")...)},
	}
	for _, p := range packages(t) {
		for _, rule := range rules {
			if !under(p.ImportPath, rule.from...) || p.ImportPath == module+"pkg/registry/registrytest" {
				continue
			}
			if p.ImportPath == module+"pkg/client/local" && !slices.Contains(rule.from, p.ImportPath) {
				continue // the in-process client is above the registry, and has its own rule
			}
			for _, d := range p.Deps {
				if under(d, rule.never...) {
					t.Errorf("%s reaches %s", p.ImportPath, d)
				}
			}
		}
	}
}

// TestLibrariesReachNoFurther checks that large libraries are linked only where needed, including indirect imports.
func TestLibrariesReachNoFurther(t *testing.T) {
	rules := []struct {
		library string
		by      []string
	}{
		{"k8s.io/kubernetes", ours("pkg/kind/builtin", "pkg/registry", "pkg/client/local", "pkg/admission", "pkg/apiserver", "pkg/server", "pkg/testcluster", "cmd/coracle")},
		{"k8s.io/apiserver", ours("pkg/kind", "pkg/cache", "pkg/store", "pkg/encryption", "pkg/webhook", "pkg/registry", "pkg/client/local", "pkg/admission", "pkg/apiserver", "pkg/server", "pkg/testcluster", "cmd/coracle")},
		{"go.etcd.io/etcd/server", ours("pkg/store", "pkg/registry", "pkg/client/local", "pkg/admission", "pkg/apiserver", "pkg/server", "pkg/testcluster", "cmd/coracle", "hack/images/etcd")},
	}
	all := packages(t)
	for _, rule := range rules {
		for _, p := range all {
			if under(p.ImportPath, rule.by...) {
				continue
			}
			if i := slices.IndexFunc(p.Deps, func(d string) bool { return under(d, rule.library) }); i >= 0 {
				t.Errorf("%s reaches %s: %s", p.ImportPath, p.Deps[i], strings.Join(chain(all, p.ImportPath, p.Deps[i]), " imports "))
			}
		}
	}
}

// chain returns a chain of imports from one package to another, as far as it is within the module.
func chain(all []pkg, from, to string) []string {
	known := make(map[string]pkg, len(all))
	for _, p := range all {
		known[p.ImportPath] = p
	}
	path := []string{from}
	for {
		p := known[path[len(path)-1]]
		if slices.Contains(p.Imports, to) {
			return append(path, to)
		}
		next := slices.IndexFunc(p.Imports, func(i string) bool { return slices.Contains(known[i].Deps, to) })
		if next < 0 {
			return append(path, "...", to)
		}
		path = append(path, p.Imports[next])
	}
}

// TestReconcilersStandAlone checks that no reconciler imports another one.
func TestReconcilersStandAlone(t *testing.T) {
	root := module + "pkg/reconcile"
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, root+"/") {
			continue
		}
		folder, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, root+"/"), "/")
		for _, d := range p.Deps {
			if strings.HasPrefix(d, root+"/") && !under(d, root+"/"+folder) && !under(d, root+"/engine") {
				t.Errorf("%s reaches %s", p.ImportPath, d)
			}
		}
	}
}

// TestTheTopIsTidy checks that the top-level directory contains what the README says, and nothing else.
func TestTheTopIsTidy(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-tree", "--name-only", "HEAD").Output()
	require.NoError(t, err)
	allowed := map[string]bool{
		"cmd": true, "pkg": true, "apis": true, "manifests": true, "hack": true, "test": true,
		"Makefile": true, "README.md": true, "LICENSE": true, "go.mod": true, "go.sum": true,
	}
	for _, name := range strings.Fields(string(out)) {
		if !allowed[name] && !strings.HasPrefix(name, ".") {
			t.Errorf("%s does not belong at the top", name)
		}
	}
	mod, err := exec.Command("go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	require.NotContains(t, string(mod), `"Replace": [`)
}
