package server

import (
	"io"
	"os"
)

// limitedLog writes to a log file and keeps it within maxLog: it moves the contents to a second file and truncates the
// first. It copies instead of renaming since the file is also the process's standard error, where Go's runtime reports
// panics. Writes must be serialized.
type limitedLog struct {
	*os.File
	path  string
	size  int64
	limit int64
}

// boundedLog returns a writer to f that keeps it within maxLog if it is the file at path, opened for appending, and f
// otherwise: in the foreground, standard error is a terminal or a supervisor's.
func boundedLog(f *os.File, path string) io.Writer {
	info, err := f.Stat()
	if there, statErr := os.Stat(path); err != nil || statErr != nil || !os.SameFile(info, there) {
		return f
	}
	return &limitedLog{File: f, path: path, size: info.Size(), limit: maxLog}
}

func (l *limitedLog) Write(p []byte) (int, error) {
	if l.size += int64(len(p)); l.size > l.limit {
		l.size = int64(len(p))
		l.turn()
	}
	return l.File.Write(p)
}

// turn moves the contents to path.1. If the disk is full it drops them: the log may not fill it further.
func (l *limitedLog) turn() {
	if from, err := os.Open(l.path); err == nil {
		if to, err := os.OpenFile(l.path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
			_, _ = io.Copy(to, io.LimitReader(from, 2*l.limit))
			_ = to.Close()
		}
		_ = from.Close()
	}
	_ = l.File.Truncate(0)
}
