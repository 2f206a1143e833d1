package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// removeVolume removes the directory of a local volume. It responds 204, or 409 while a pod uses the volume or it is
// being copied. After a cancelled request, the next one removes the rest.
func (s *Server) removeVolume(w http.ResponseWriter, r *http.Request) {
	removed(w, s.c.Pods.Directories().Remove(r.Context(), r.PathValue("volume")))
}

func removed(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, volume.ErrInUse), errors.Is(err, volume.ErrBusy):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// resizeVolume sets the size of a local volume. It responds 204.
func (s *Server) resizeVolume(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("bytes"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.c.Pods.Directories().Resize(r.PathValue("volume"), size); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.c.Pods.RetryVolumes() // a pod may wait for space in its claim
	w.WriteHeader(http.StatusNoContent)
}

// progressStep is the number of bytes between two reports of progress.
const progressStep = 1 << 30

// copying runs a copy. It responds 200 with a stream of storage.CopyProgress as JSON. Cancelling the request ends it.
func copying(w http.ResponseWriter, run func(copied func(uint64)) (*storage.Snapshot, error)) {
	w.Header().Set("Content-Type", "application/json")
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	var mu sync.Mutex
	say := func(p storage.CopyProgress) {
		mu.Lock()
		defer mu.Unlock()
		if out.Encode(p) == nil {
			_ = flush.Flush()
		}
	}
	say(storage.CopyProgress{})
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	defer end()
	var beating sync.WaitGroup
	beating.Go(func() {
		beat := time.NewTicker(storage.CopyHeartbeat)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
				say(storage.CopyProgress{})
			case <-ended:
				return
			}
		}
	})
	next := uint64(progressStep)
	snapshot, err := run(func(bytes uint64) {
		if bytes >= next {
			next = bytes + progressStep
			say(storage.CopyProgress{Copied: bytes})
		}
	})
	end()
	beating.Wait()
	last := storage.CopyProgress{Snapshot: snapshot, Done: true}
	if err != nil {
		last = storage.CopyProgress{
			Error: bounded.Text(err.Error(), storage.MaxCopyError),
			Busy:  errors.Is(err, volume.ErrBusy),
			Done:  true,
		}
	}
	say(last)
}

// takeSnapshot takes a snapshot of a local volume, or returns the record of the existing one.
func (s *Server) takeSnapshot(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("bytes"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	copying(w, func(copied func(uint64)) (*storage.Snapshot, error) {
		taken, err := s.c.Pods.Directories().TakeSnapshot(r.Context(), r.PathValue("snapshot"), r.PathValue("volume"), size,
			copied)
		return &taken, err
	})
}

func (s *Server) findSnapshot(w http.ResponseWriter, r *http.Request) {
	copying(w, func(func(uint64)) (*storage.Snapshot, error) {
		found, err := s.c.Pods.Directories().FindSnapshot(r.PathValue("snapshot"))
		return &found, err
	})
}

// removeSnapshot removes a snapshot. It responds 204, or 409 while the snapshot is being copied.
func (s *Server) removeSnapshot(w http.ResponseWriter, r *http.Request) {
	removed(w, s.c.Pods.Directories().RemoveSnapshot(r.Context(), r.PathValue("snapshot")))
}

// fillVolume creates the directory of a local volume from a snapshot or another volume.
func (s *Server) fillVolume(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("bytes"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	copying(w, func(copied func(uint64)) (*storage.Snapshot, error) {
		return nil, s.c.Pods.Directories().Fill(r.Context(), r.PathValue("volume"),
			r.PathValue("kind")+"/"+r.PathValue("source"), size, copied)
	})
}
