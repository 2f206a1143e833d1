package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// Huge pages are reserved at boot, so their memory is not available otherwise.
func TestHugePagesAreNotAllocatableAsMemory(t *testing.T) {
	a := &Agent{
		machine: machine{
			cpus:      2,
			memory:    8 << 30,
			disk:      1 << 40,
			hugePages: map[string]int64{"2Mi": 1 << 30, "1Gi": 2 << 30},
		},
	}
	a.c.Eviction = eviction.Policy{Thresholds: map[config.Signal]config.Threshold{}}
	all := a.allocatable()
	require.EqualValues(t, 5<<30, all.Memory().Value())
	whole := a.capacity()
	require.EqualValues(t, 8<<30, whole.Memory().Value())
	pages := all["hugepages-1Gi"]
	require.EqualValues(t, 2<<30, pages.Value())

	a.machine.hugePages["1Gi"] = 16 << 30
	all = a.allocatable()
	require.Zero(t, all.Memory().Value())
}
