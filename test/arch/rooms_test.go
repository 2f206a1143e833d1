package arch

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type room struct {
	name string
	may  []string // the rooms that its packages may import
}

// rooms are the directories below pkg, from the top layer to the bottom, with the rooms that the packages of each
// may import. A room imports only rooms below it.
var rooms = []room{
	{"testing", []string{"server", "systems", "control", "api", "engine", "state", "client", "kind", "base"}},
	{"server", []string{"cli", "systems", "control", "node", "api", "engine", "state", "client", "kind", "base"}},
	{"cli", []string{"systems", "node", "base"}},
	{"systems", []string{"control", "node", "api", "engine", "client", "kind", "base"}},
	{"control", []string{"engine", "client", "kind", "base"}},
	{"node", []string{"engine", "client", "kind", "base"}},
	{"api", []string{"engine", "state", "client", "kind", "base"}},
	{"engine", []string{"client", "kind", "base"}},
	{"state", []string{"kind", "base"}},
	{"client", []string{"base"}},
	{"kind", nil},
	{"base", nil},
}

// TestRoomsImportDownwards checks that each package imports only from the rooms that its room may import.
func TestRoomsImportDownwards(t *testing.T) {
	const house = module + "pkg/"
	may := map[string][]string{}
	for _, r := range rooms {
		may[r.name] = append(r.may, r.name)
	}
	for _, p := range packages(t) {
		name, inside := strings.CutPrefix(p.ImportPath, house)
		if !inside {
			continue
		}
		room, _, _ := strings.Cut(name, "/")
		for _, i := range p.Imports {
			to, inside := strings.CutPrefix(i, house)
			if !inside {
				continue
			}
			if other, _, _ := strings.Cut(to, "/"); !slices.Contains(may[room], other) {
				t.Errorf("pkg/%s imports pkg/%s: packages of %s may import only %s", name, to, room, strings.Join(may[room], ", "))
			}
		}
	}
}

// knowing are packages below the systems that may import the API group of a system, with the reason.
var knowing = map[string]string{
	"pkg/control/scheduler": "its profile for pods of tasks compares what no other profile does",
	"pkg/client/clienttest": "it needs a kind whose status the test alone writes",
}

// TestTheCoreKnowsNoSystem checks that no package below the systems imports the API group of a system.
func TestTheCoreKnowsNoSystem(t *testing.T) {
	above := []string{"testing", "server", "cli", "systems"}
	for _, p := range packages(t) {
		name, inside := strings.CutPrefix(p.ImportPath, module)
		if !inside || !strings.HasPrefix(name, "pkg/") || slices.Contains(above, strings.Split(name, "/")[1]) {
			continue
		}
		for _, group := range []string{"tasks", "workers", "kontrol", "buildbarn"} {
			if slices.Contains(p.Imports, module+"apis/"+group+"/v1alpha1") && knowing[name] == "" {
				t.Errorf("%s imports apis/%s: let the system register its part instead (pkg/systems/system)", name, group)
			}
		}
	}
}

// TestPackagesAreInRooms checks that the directories of pkg are exactly the rooms.
func TestPackagesAreInRooms(t *testing.T) {
	entries, err := os.ReadDir("../../pkg")
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() && !slices.ContainsFunc(rooms, func(r room) bool { return r.name == e.Name() }) {
			t.Errorf("pkg/%s is not a room: move it into one of them", e.Name())
		}
	}
	for i, r := range rooms {
		for _, below := range r.may {
			if !slices.ContainsFunc(rooms[i+1:], func(o room) bool { return o.name == below }) {
				t.Errorf("%s may import %s, which is not below it", r.name, below)
			}
		}
	}
}
