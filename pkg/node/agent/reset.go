package agent

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Reset unmounts everything below the given directories: volumes that pods left there. No agent may be running with
// them.
func Reset(dirs ...string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// proc_pid_mountinfo(5): the fifth field is the mount point, with space, tab, newline and backslash as octal escapes.
		point := unescape.Replace(strings.Fields(line)[4])
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(point, dir+"/") }) {
			points = append(points, point)
		}
	}
	var errs []error
	for _, point := range slices.Backward(points) {
		// Detaching the copy of a shared mount would detach the mounts below the original, too.
		_ = unix.Mount("", point, "", unix.MS_PRIVATE, "")
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, &os.PathError{Op: "unmount", Path: point, Err: err})
		}
	}
	return errors.Join(errs...)
}
