package server

import (
	"io"
	"os"
)

// limitedLog writes to a log file of at most limit bytes: before a write would exceed it, it copies the contents to
// a second file and truncates the first. It does not rename the file, because the file is also the process's
// standard error, to which Go's runtime writes panics. The caller must serialize writes.
type limitedLog struct {
	*os.File
	path  string
	size  int64
	limit int64
}

// boundedLog returns a limitedLog if f is the file at path, opened for appending. Otherwise it returns f: in the
// foreground, standard error belongs to a terminal or a supervisor.
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

// turn moves the contents to path.1. If the disk is full, it drops them.
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
