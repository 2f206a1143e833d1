package pod

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxRoom is the maximum size of the preemptions' file, in bytes.
	maxRoom = 1 << 20
	// roomMargin is added to a victim's grace period when computing the deadline in rooms.
	roomMargin = 10 * time.Second
)

// rooms records, by pod UID, which victims a preempting pod waits for and until when. The deadline matters for
// victims that the agent does not know: while no API server is reachable, nothing ends them. The record is kept in a
// file for the next process. Safe for concurrent use.
type rooms struct {
	file string
	log  *slog.Logger

	mu    sync.Mutex
	waits map[types.UID]map[types.UID]time.Time
}

func newRooms(file string, log *slog.Logger) *rooms {
	r := &rooms{file: file, log: log, waits: map[types.UID]map[types.UID]time.Time{}}
	data, err := bounded.File(file, maxRoom)
	if err == nil {
		err = json.Unmarshal(data, &r.waits)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("could not read which pods wait for preempted ones", "file", file, "error", err)
	}
	return r
}

func (r *rooms) of(uid types.UID) map[types.UID]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.waits[uid])
}

// set records the victims that a pod waits for; nil removes the record.
func (r *rooms) set(uid types.UID, others map[types.UID]time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if others == nil && r.waits[uid] == nil {
		return
	}
	if others == nil {
		delete(r.waits, uid)
	} else {
		r.waits[uid] = others
	}
	r.write()
}

func (r *rooms) keep(some func(types.UID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.waits)
	maps.DeleteFunc(r.waits, func(uid types.UID, _ map[types.UID]time.Time) bool { return !some(uid) })
	if len(r.waits) != before {
		r.write()
	}
}

// Called with the lock held.
func (r *rooms) write() {
	if err := atomicfile.WriteJSON(r.file, r.waits); err != nil {
		r.log.Warn("could not record which pods wait for preempted ones", "file", r.file, "error", err)
	}
}
