package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// TestModulesAreTried checks that a node starts if modules are not loaded yet, so that /proc/filesystems does not
// list overlay.
func TestModulesAreTried(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("needs root")
	}
	list := filepath.Join(t.TempDir(), "filesystems")
	require.NoError(t, os.WriteFile(list, []byte("nodev\tproc\n\text4\n"), 0o600))
	require.NoError(t, mount.Alone(func() error {
		if err := unix.Mount(list, "/proc/filesystems", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		return modules()
	}))
}

func TestMissingModulesAreLoaded(t *testing.T) {
	overlay := network.Need{Module: "overlay", For: "the file systems of containers", Err: unix.ENODEV}
	masq := network.Need{Module: "nft_masq", For: "connections of pods to other networks", Err: unix.ENOENT}
	for name, c := range map[string]struct {
		loadable []string
		want     string
		failed   error
	}{
		"all can be loaded": {loadable: []string{"overlay", "nft_masq"}},
		"one cannot be loaded": {loadable: []string{"overlay"},
			want: "the kernel lacks nft_masq, which connections of pods to other networks need (no such file or directory): " +
				"load it with `modprobe nft_masq`, or install a kernel that has this module"},
		"none can be loaded": {
			want: "the kernel lacks overlay, which the file systems of containers need (no such device): " +
				"load it with `modprobe overlay`, or install a kernel that has this module\n" +
				"the kernel lacks nft_masq, which connections of pods to other networks need (no such file or directory): " +
				"load it with `modprobe nft_masq`, or install a kernel that has this module"},
		"nothing can be tried": {failed: errors.New("unshare: no"), want: "unshare: no"},
	} {
		t.Run(name, func(t *testing.T) {
			loaded := map[string]bool{}
			err := checkModules(func() (missing []network.Need, err error) {
				for _, n := range []network.Need{overlay, masq} {
					if !loaded[n.Module] {
						missing = append(missing, n)
					}
				}
				return missing, c.failed
			}, func(module string) error {
				for _, l := range c.loadable {
					if l == module {
						loaded[module] = true
						return nil
					}
				}
				return errors.New("module not found")
			})
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.want)
			}
		})
	}
}
