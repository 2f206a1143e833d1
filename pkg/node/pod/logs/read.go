package logs

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxFiles limits the files of one log that are read. The runtime keeps fewer.
const maxFiles = 10

// fileNames lists a log's files, oldest first: path.N, and path itself last.
func fileNames(path string) []string {
	rotated, _ := filepath.Glob(path + ".*")
	sort.Slice(rotated, func(i, j int) bool {
		return len(rotated[i]) > len(rotated[j]) || len(rotated[i]) == len(rotated[j]) && rotated[i] > rotated[j]
	})
	return append(rotated, path)
}

// openAll returns a log's open files, oldest first. It opens the newest first, so that a concurrent rotation cannot
// hide a file; one seen twice is ignored.
func openAll(path string) (files []*os.File, err error) {
	names := fileNames(path)
	var infos []fs.FileInfo
	for i := len(names) - 1; i >= 0 && len(files) < maxFiles; i-- {
		f, openErr := bounded.Open(names[i])
		if errors.Is(openErr, fs.ErrNotExist) {
			continue
		}
		var info fs.FileInfo
		if err = openErr; err == nil {
			if info, err = f.Stat(); err != nil {
				f.Close()
			}
		}
		if err != nil {
			closeAll(files)
			return nil, err
		}
		if slices.ContainsFunc(infos, func(have fs.FileInfo) bool { return os.SameFile(have, info) }) {
			f.Close()
			continue
		}
		files, infos = append(files, f), append(infos, info)
	}
	if len(files) == 0 {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	slices.Reverse(files)
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// next opens the file after current, or returns nil if current is the newest.
func next(current *os.File, path string) *os.File {
	have, err := current.Stat()
	if err != nil {
		return nil
	}
	if now, err := os.Lstat(path); err != nil || os.SameFile(have, now) {
		return nil
	}
	files, err := openAll(path)
	if err != nil {
		return nil
	}
	at := slices.IndexFunc(files, func(f *os.File) bool {
		info, err := f.Stat()
		return err == nil && os.SameFile(have, info)
	}) + 1 // 0 if current was removed: continue with the oldest
	if at == len(files) {
		closeAll(files)
		return nil
	}
	f := files[at]
	closeAll(slices.Delete(files, at, at+1))
	return f
}

// Read writes a log to w; fs.ErrNotExist if there is none. If w has a Flush method, it is called before each wait.
func Read(ctx context.Context, path string, o Options, w io.Writer) error {
	out := &writer{w: w, o: o, left: o.Limit}
	var changed <-chan struct{}
	if o.Follow {
		c, end, err := watching.follow(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer end()
		changed = c
	}
	files, err := openAll(path)
	if err != nil {
		return err
	}
	begin, offset, midLine := start(ctx, files, o)
	closeAll(files[:begin])
	files = files[begin:]
	if _, err := files[0].Seek(offset, io.SeekStart); err != nil {
		closeAll(files)
		return err
	}
	in := bufio.NewReader(files[0])
	if midLine {
		skipLine(in)
	}
	var pending []byte
	for len(files) > 1 {
		err := out.drain(ctx, in, &pending)
		files[0].Close()
		files = files[1:]
		if err != nil {
			closeAll(files)
			return done(err)
		}
		in, pending = bufio.NewReader(files[0]), nil
	}
	return done(out.follow(ctx, files[0], in, path, changed))
}

// follow reads current to its end and, if changed is set, continues with later writes. It closes current.
func (w *writer) follow(ctx context.Context, current *os.File, in *bufio.Reader, path string,
	changed <-chan struct{}) error {
	defer func() { current.Close() }()
	var pending []byte
	ended := false
	for {
		if err := w.drain(ctx, in, &pending); err != nil {
			return err
		}
		if changed == nil {
			if l, err := Parse(pending); err == nil {
				return w.line(l)
			}
			return nil
		}
		if f := next(current, path); f != nil {
			if err := w.drain(ctx, in, &pending); err != nil { // written before the rotation
				f.Close()
				return err
			}
			current.Close()
			current, in, pending = f, bufio.NewReader(f), nil
			continue
		}
		if ended {
			return nil
		}
		if f, ok := w.w.(interface{ Flush() }); ok {
			f.Flush()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.o.Ended:
			ended = true
		case <-changed:
		}
	}
}

func done(err error) error {
	if errors.Is(err, errLimit) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func skipLine(in *bufio.Reader) {
	for {
		if _, err := in.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
