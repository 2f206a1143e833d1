package agent

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Reset unmounts everything below the given directories, such as volumes of pods. No agent may be using them.
func Reset(dirs ...string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		// The fifth field of proc_pid_mountinfo(5) is the mount point, with white space and backslash as octal escapes.
		point := unescape.Replace(strings.Fields(line)[4])
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(point, dir+"/") }) {
			points = append(points, point)
		}
	}
	var errs []error
	for _, point := range slices.Backward(points) {
		// Detaching a copy of a shared mount would also detach the mounts below the original.
		_ = unix.Mount("", point, "", unix.MS_PRIVATE, "")
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, &os.PathError{Op: "unmount", Path: point, Err: err})
		}
	}
	return errors.Join(errs...)
}
