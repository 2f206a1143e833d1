package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	maxEntry   = 1 << 10 // bytes of an entry
	maxEntries = 10_000
	patience   = 20 * time.Second // how long a follower's request waits for the next entry
)

var (
	errFull     = errors.New("the guestbook is full")
	errFollower = errors.New("this is a replica: write to the store that it follows")
)

// store is a list of entries of one line each. It is safe for concurrent use.
type store struct {
	mu      sync.Mutex
	entries [][]byte
	more    chan struct{} // closed when entries were added
	file    *os.File      // nil in a follower
}

func newStore() *store { return &store{more: make(chan struct{})} }

// open opens the store in a file. It cuts off a trailing partial line, which was never acknowledged.
func open(path string) (*store, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s, whole := newStore(), int64(0)
	for in := bufio.NewReaderSize(io.LimitReader(file, maxEntries*(maxEntry+1)), maxEntry+1); ; {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		whole += int64(len(line))
		s.entries = append(s.entries, bytes.Clone(line))
	}
	if err := file.Truncate(whole); err != nil {
		return nil, err
	}
	_, err = file.Seek(whole, io.SeekStart)
	s.file = file
	return s, err
}

// add adds a line and syncs it to disk before it returns.
func (s *store) add(line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == maxEntries {
		return errFull
	}
	if s.file != nil {
		at, err := s.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if _, err = s.file.Write(line); err == nil {
			err = s.file.Sync()
		}
		if err != nil { // for example a full disk
			_ = s.file.Truncate(at)
			_, _ = s.file.Seek(at, io.SeekStart)
			return err
		}
	}
	s.entries = append(s.entries, line)
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

// since returns the entries from index from on, and a channel that is closed when entries are added.
func (s *store) since(from int) ([][]byte, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[min(max(from, 0), len(s.entries)):], s.more
}

// ServeHTTP lists the entries from index N on (GET /?from=N; with &wait=true it waits for one), and adds an entry
// (POST).
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		s.post(w, r)
		return
	}
	from, _ := strconv.Atoi(r.FormValue("from"))
	entries, more := s.since(from)
	if len(entries) == 0 && r.FormValue("wait") != "" {
		select {
		case <-more:
		case <-time.After(patience):
		case <-r.Context().Done():
		}
		entries, _ = s.since(from)
	}
	for _, line := range entries {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

func (s *store) post(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEntry))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if s.file == nil {
		err = errFollower
	} else {
		text = bytes.Join(bytes.Fields(text), []byte(" ")) // one line
		err = s.add(append(text, '\n'))
	}
	switch {
	case errors.Is(err, errFollower):
		http.Error(w, err.Error(), http.StatusMethodNotAllowed)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// follow replicates the store at a URL until ctx is done, and reconnects after errors.
func (s *store) follow(ctx context.Context, url string) {
	client := &http.Client{Timeout: patience + 10*time.Second}
	for ctx.Err() == nil {
		if err := s.copy(ctx, client, url); err != nil {
			log.Print(err)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

func (s *store) copy(ctx context.Context, client *http.Client, url string) error {
	have, _ := s.since(0)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/?wait=true&from=%d", url, len(have)),
		nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	for in := bufio.NewReaderSize(response.Body, maxEntry+1); ; {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.add(bytes.Clone(line))
		}
		if err != nil {
			return err
		}
	}
}
