package userns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPool checks that no ID has two owners, whatever ranges earlier processes allocated, and that all ranges are
// allocated, none twice in a row.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each := uint32(Unit) * rapid.Uint32Range(1, 2).Draw(t, "each")
		count := rapid.Uint32Range(1, 6).Draw(t, "count")
		p := newPool(Range{First: each * rapid.Uint32Range(1, 3).Draw(t, "first"), Count: each * count}, each)
		held := map[string]Range{}
		apart := func(r Range) bool {
			for _, other := range held {
				if uint64(r.First) < other.end() && uint64(other.First) < r.end() {
					return false
				}
			}
			return true
		}
		free := func() (n int) {
			for i := range count {
				if apart(Range{First: p.all.First + i*each, Count: each}) {
					n++
				}
			}
			return n
		}
		var last Range
		for i := range rapid.IntRange(1, 100).Draw(t, "steps") {
			owner := fmt.Sprint(i)
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				left := free()
				r, err := p.take(owner)
				if left == 0 {
					require.ErrorIs(t, err, ErrNoRange)
					continue
				}
				require.NoError(t, err)
				require.True(t, apart(r), "%v is apart from %v", r, held)
				require.GreaterOrEqual(t, r.First, p.all.First)
				require.LessOrEqual(t, r.end(), p.all.end())
				require.Zero(t, r.First%each)
				require.Equal(t, each, r.Count)
				if left > 1 {
					require.NotEqual(t, last, r)
				}
				held[owner], last = r, r
				again, err := p.take(owner)
				require.NoError(t, err)
				require.Equal(t, r, again)
			case 1: // like a restart with another configuration
				r := Range{
					First: rapid.Uint32Range(1, 8*Unit).Draw(t, "kept first"),
					Count: rapid.Uint32Range(1, 3*Unit).Draw(t, "kept count"),
				}
				if apart(r) {
					p.keep(owner, r)
					held[owner] = r
				}
				last = Range{} // allocation continues after the kept range
			default:
				for owner := range held {
					p.release(owner)
					p.release(owner)
					delete(held, owner)
					break
				}
			}
		}
		for owner := range held {
			p.release(owner)
		}
		require.Empty(t, p.held)
		require.Empty(t, p.taken)
	})
}

func etc(t *testing.T, users, groups string) string {
	dir := t.TempDir()
	for name, text := range map[string]string{"subuid": users, "subgid": groups} {
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	return dir
}

// TestConfigured checks that pods get the IDs of the user kubelet, as with the kubelet, or all unassigned IDs.
func TestConfigured(t *testing.T) {
	const own = "kubelet:131072:7208960\n" // 110 pods
	for name, tt := range map[string]struct {
		users, groups string
		each          uint32
		want          Range
		err           string
	}{
		"nothing":        {want: Range{65536, 1<<31 - 65536}},
		"the kubelet's":  {users: own, groups: own, want: Range{131072, 7208960}},
		"among others":   {users: "a:100000:65536\n" + own, groups: own + "# a comment\n\n", want: Range{131072, 7208960}},
		"of users alone": {users: own, err: "different IDs"},
		"different":      {users: own, groups: "kubelet:65536:7208960\n", err: "different IDs"},
		"two":            {users: own + own, groups: own + own, err: "2 ranges: pods need one"},
		"root":           {users: "kubelet:0:7208960\n", groups: "kubelet:0:7208960\n", err: "must not be 0"},
		"not aligned": {
			users: "kubelet:100000:7208960\n", groups: "kubelet:100000:7208960\n", err: "multiples of 65536",
		},
		"a part of a range": {users: "kubelet:65536:7208961\n", groups: "kubelet:65536:7208961\n", err: "multiples of 65536"},
		"too few": {
			users: "kubelet:65536:65536\n", groups: "kubelet:65536:65536\n", err: "65536 IDs for each of 110 pods are more than",
		},
		"the last ID": {
			users: "kubelet:65536:4294901760\n", groups: "kubelet:65536:4294901760\n", err: "the highest is not a valid ID",
		},
		"no number": {users: "kubelet:x:65536\n", groups: own, err: `"kubelet:x:65536"`},
		"more IDs":  {each: 131072, want: Range{131072, 1<<31 - 131072}},
		"more IDs, aligned": {
			each: 131072, users: "kubelet:131072:14417920\n", groups: "kubelet:131072:14417920\n", want: Range{131072, 14417920},
		},
		"three units": {each: 3 * 65536, want: Range{196608, (1<<31/196608)*196608 - 196608}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.each == 0 {
				tt.each = Unit
			}
			p, err := configured(etc(t, tt.users, tt.groups), tt.each, 110)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, p.all)
		})
	}
}

// TestOthersKeepTheirIDs checks that no pod gets IDs that the administrator assigned to another user.
func TestOthersKeepTheirIDs(t *testing.T) {
	p, err := configured(etc(t, "podman:100000:65536\n", "podman:100000:65536\ngroup:262144:1\n"), Unit, 110)
	require.NoError(t, err)
	var firsts []uint32
	for i := range 3 {
		r, err := p.take(fmt.Sprint(i))
		require.NoError(t, err)
		firsts = append(firsts, r.First)
	}
	require.Equal(t, []uint32{196608, 327680, 393216}, firsts)
}

// TestSupportedWithoutAFreeRange checks that user namespaces are supported if the node's pods use all ranges when
// the agent starts, but not if no range is available to pods.
func TestSupportedWithoutAFreeRange(t *testing.T) {
	m := &Manager{pool: newPool(Range{First: Unit, Count: Unit}, Unit)}
	m.pool.avoid("subuid/somebody", []Range{{First: Unit, Count: Unit}})
	require.ErrorIs(t, m.probe(), ErrNoRange)
	m = &Manager{pool: newPool(Range{First: Unit, Count: Unit}, Unit)}
	m.Keep("uid", Range{First: Unit, Count: Unit})
	require.NoError(t, m.probe())
}

// TestSubordinateIDsAreBounded checks that an oversized file is not read to its end.
func TestSubordinateIDsAreBounded(t *testing.T) {
	dir := etc(t, "x", "")
	require.NoError(t, os.Truncate(filepath.Join(dir, "subuid"), 1<<40))
	_, err := configured(dir, Unit, 110)
	require.ErrorContains(t, err, "larger than the limit")
}
