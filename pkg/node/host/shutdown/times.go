package shutdown

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// maxTimes limits the file's size, in bytes.
const maxTimes = 4 << 10

// times records when the last shutdown began, and when its pods had ended (zero until then). It is kept in a file,
// since the metrics, which have the kubelet's names, are read after the shutdown.
type times struct {
	file string
	log  *slog.Logger

	mu   sync.Mutex
	last struct {
		Start time.Time `json:"startTime"`
		End   time.Time `json:"endTime"`
	}
}

// newTimes reads the file, if it exists, and registers the metrics.
func newTimes(file string, log *slog.Logger, reg prometheus.Registerer) *times {
	t := &times{file: file, log: log}
	data, err := bounded.File(file, maxTimes)
	if err == nil {
		err = json.Unmarshal(data, &t.last)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("could not read when the machine shut down last", "error", err)
	}
	metric := func(name, help string, of *time.Time) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			t.mu.Lock()
			defer t.mu.Unlock()
			if of.IsZero() {
				return 0
			}
			return float64(of.Unix())
		})
	}
	metric("kubelet_graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds",
		&t.last.Start)
	metric("kubelet_graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds",
		&t.last.End)
	return t
}

func (t *times) began() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last.Start, t.last.End = time.Now(), time.Time{}
	t.write()
}

func (t *times) ended() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last.End = time.Now()
	t.write()
}

// write replaces the file. The caller must hold t.mu.
func (t *times) write() {
	data, err := json.Marshal(t.last)
	if err == nil {
		err = atomicfile.WriteDurably(t.file, data)
	}
	if err != nil {
		t.log.Warn("could not record when the machine shuts down", "error", err)
	}
}
