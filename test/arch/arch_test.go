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

// TestLibrariesStayInTheirRooms checks that only the package for a purpose imports the external library for it.
func TestLibrariesStayInTheirRooms(t *testing.T) {
	rooms := []struct {
		library string
		rooms   []string
	}{
		{"go.etcd.io/etcd", ours("pkg/state/store", "hack/images/etcd")},
		{
			"github.com/containerd",
			ours("pkg/node/runtime/containerd", "pkg/node/runtime/shim", "cmd/coracle-shim", "pkg/systems/kontrol/artifact"),
		},
		{"github.com/opencontainers/runc", ours("pkg/node/runtime/shim", "cmd/coracle-shim")},
		{"github.com/vishvananda", ours("pkg/node/network", "pkg/node/proxy")},
		{"github.com/google/nftables", ours("pkg/node/network", "pkg/node/proxy", "pkg/node/netpolicy", "pkg/node/tables")},
		{"k8s.io/kubernetes", ours("pkg/api")},
		{
			"k8s.io/apiserver",
			ours("pkg/kind", "pkg/state/encryption", "pkg/api", "pkg/systems", "pkg/server", "pkg/testing"),
		},
		{"k8s.io/kubectl", ours("pkg/cli")},
		{"github.com/miekg/dns", ours("pkg/node/dns")},
		{"github.com/godbus/dbus", ours("pkg/node/host/shutdown")},
		{"github.com/bazelbuild/remote-apis", ours("pkg/systems/buildbarn/remote")},
		// pkg/api/local has its own informer factory: upstream's links the informers of all groups, 4.5 MB.
		{"k8s.io/client-go/informers", ours("pkg/api/local", "pkg/api/webhook", "pkg/api/admission")},
		{"github.com/nats-io/nats.go", ours("pkg/systems/workers/queue", "test/e2e")},
		{"github.com/nats-io/nats-server", nil}, // tests alone
		{"go.opentelemetry.io/otel", ours("pkg/systems/workers/spans", "pkg/systems/workers/dispatch")},
		{"github.com/google/go-jsonnet", ours("pkg/systems/buildbarn/check/program")},
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

// TestPartsStandAlone checks the dependencies that TestRoomsImportDownwards does not: packages must not depend,
// even indirectly, on parts that must not be linked into them.
func TestPartsStandAlone(t *testing.T) {
	server := ours("pkg/state/store", "pkg/api/registry", "pkg/api/local", "pkg/api/admission", "pkg/api/apiserver",
		"pkg/server")
	rules := []struct{ from, never []string }{
		{ours("apis"), ours("pkg", "cmd")},
		{ours("pkg/state/store"), ours("pkg/state/cache")},
		{ours("pkg/state/cache", "pkg/state/encryption"), ours("pkg/state/store")},
		{ours("pkg/client", "pkg/engine", "pkg/control", "pkg/node", "pkg/systems", "pkg/cli"), server},
		{ours("pkg/api/registry", "pkg/api/local"), ours("pkg/api/admission", "pkg/api/apiserver")},
		{ours("pkg/api/admission"), ours("pkg/api/apiserver")},
		{ours("apis", "cmd", "pkg/server", "pkg/node", "pkg/cli"), ours("pkg/testing/testcluster")},
		// Programs that run as separate processes.
		{ours("cmd/coracle"), ours("pkg/systems/buildbarn/check/program", "pkg/systems/buildbarn/schema")},
		{
			ours("pkg/systems/buildbarn/fit", "pkg/systems/buildbarn/remote", "pkg/systems/buildbarn/check/program",
				"pkg/systems/buildbarn/schema"), ours("pkg/client", "pkg/engine"),
		},
		{
			ours("cmd/coracle-shim"),
			append(ours("pkg/kind", "pkg/state", "pkg/client", "pkg/cli"), append(server, "k8s.io")...),
		},
	}
	for _, p := range packages(t) {
		for _, rule := range rules {
			if !under(p.ImportPath, rule.from...) {
				continue
			}
			for _, d := range p.Deps {
				if under(d, rule.never...) {
					t.Errorf("%s reaches %s", p.ImportPath, d)
				}
			}
		}
	}
}

// TestLibrariesReachNoFurther checks that large libraries are linked only where they are needed, including indirect
// imports.
func TestLibrariesReachNoFurther(t *testing.T) {
	rules := []struct {
		library string
		by      []string
	}{
		{"k8s.io/kubernetes", ours("pkg/api", "pkg/systems", "pkg/server", "pkg/testing", "cmd/coracle")},
		{
			"k8s.io/apiserver",
			ours("pkg/kind", "pkg/engine/kinds", "pkg/state", "pkg/api", "pkg/control/scheduler/allocation", "pkg/systems",
				"pkg/server", "pkg/testing", "cmd/coracle"),
		},
		{
			"go.etcd.io/etcd/server",
			ours("pkg/state/store", "pkg/api", "pkg/server", "pkg/testing", "cmd/coracle", "hack/images/etcd"),
		},
	}
	all := packages(t)
	for _, rule := range rules {
		for _, p := range all {
			if under(p.ImportPath, rule.by...) {
				continue
			}
			if i := slices.IndexFunc(p.Deps, func(d string) bool { return under(d, rule.library) }); i >= 0 {
				t.Errorf("%s reaches %s: %s", p.ImportPath, p.Deps[i],
					strings.Join(chain(all, p.ImportPath, p.Deps[i]), " imports "))
			}
		}
	}
}

// chain returns a chain of imports from one package to another, up to the first package outside the module.
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

// TestControllersStandAlone checks that no controller imports another one.
func TestControllersStandAlone(t *testing.T) {
	root := module + "pkg/control/controllers"
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, root+"/") {
			continue
		}
		folder, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, root+"/"), "/")
		for _, d := range p.Deps {
			if strings.HasPrefix(d, root+"/") && !under(d, root+"/"+folder) {
				t.Errorf("%s reaches %s", p.ImportPath, d)
			}
		}
	}
}

// TestTheTopIsTidy checks that the top-level directory contains only the entries that the README lists.
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
