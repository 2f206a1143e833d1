package static

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// backupOf returns the name that editors such as vim rename a file to before writing it anew.
func backupOf(name string) string { return name + "~" }

// leaveBackups returns names without the backups of renamed files, and with the files that were renamed and are not
// written yet. The latter are also in away and keep their contents. If the file is deleted after all, its backup
// counts as an ordinary file. lost means that events were lost.
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
		leaves := hasBackup && !isThere && !gone // the event about the rename has not arrived
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
