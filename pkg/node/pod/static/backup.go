package static

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// backupOf returns the name to which editors rename a file before they write it anew, as vim does by default. When that
// is written, they remove the backup, or leave it.
func backupOf(name string) string { return name + "~" }

// leaveBackups returns the names of the files without the backups that files were renamed to, and with the files that
// are away until they are written anew: those stay as they were. A file that is removed after all is away no more, and
// its backup is a file as any other. lost means that events were lost.
func (f *folder) leaveBackups(names []string, changed map[string]uint32,
	lost bool) (files []string, away map[string]bool) {
	moved := f.watch.takeMoved()
	if lost {
		clear(f.renamed)
		return names, nil
	}
	away = map[string]bool{}
	for name := range f.files {
		at, isThere := slices.BinarySearch(names, name)
		backup, hasBackup := slices.BinarySearch(names, backupOf(name))
		gone := changed[name]&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0
		f.renamed[name] = (f.renamed[name] || moved[name]) && hasBackup && changed[backupOf(name)] == 0 && (isThere || !gone)
		leaves := hasBackup && !isThere && !gone // the event of its renaming is still to come
		if !f.renamed[name] && !leaves {
			continue
		}
		names = slices.Delete(names, backup, backup+1)
		if !isThere {
			away[name] = true
			names = slices.Insert(names, at, name)
		}
	}
	maps.DeleteFunc(f.renamed, func(name string, renamed bool) bool { return !renamed || f.files[name] == nil })
	return names, away
}
