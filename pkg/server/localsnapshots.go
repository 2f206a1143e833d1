package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/control/controllers/localsnapshot"
)

const (
	// copySilence is how long a copying node may send no heartbeat before the copy fails. A copy itself has no time
	// limit.
	copySilence = 6 * storage.CopyHeartbeat
	// maxCopyAnswer is the maximum size of a copying node's response, in bytes. It suffices for weeks: a line per
	// copied GiB and per heartbeat.
	maxCopyAnswer = 1 << 20
)

// localSnapshots sends requests for snapshots of local volumes to the nodes that have the volumes.
type localSnapshots struct{ *nodes }

var _ localsnapshot.Nodes = localSnapshots{}

func (n localSnapshots) Take(ctx context.Context, node *corev1.Node, snapshot, volume string, size int64,
	copied func(uint64)) (storage.Snapshot, error) {
	return n.copy(ctx, node, http.MethodPost, "take a snapshot of", copied, "localSnapshots", snapshot, "of", volume,
		"size", strconv.FormatInt(size, 10))
}

func (n localSnapshots) Find(ctx context.Context, node *corev1.Node, snapshot string) (storage.Snapshot, error) {
	return n.copy(ctx, node, http.MethodGet, "find the snapshot of", func(uint64) {}, "localSnapshots", snapshot)
}

func (n localSnapshots) Remove(ctx context.Context, node *corev1.Node, snapshot string) error {
	return n.askVolume(ctx, node, http.MethodDelete, "remove the snapshot of", "localSnapshots", snapshot)
}

func (n localSnapshots) Discard(ctx context.Context, node *corev1.Node, volume string) error {
	return n.removeVolume(ctx, node, volume)
}

func (n localSnapshots) Fill(ctx context.Context, node *corev1.Node, volume, kind, source string, size int64,
	copied func(uint64)) error {
	_, err := n.copy(ctx, node, http.MethodPost, "fill", copied, "localVolumes", volume, "size",
		strconv.FormatInt(size, 10), "from", kind, source)
	return err
}

// copy sends a request to a node and reads the progress in its response to the end. It fails after copySilence
// without progress.
func (n localSnapshots) copy(ctx context.Context, node *corev1.Node, method, verb string, copied func(uint64),
	path ...string) (storage.Snapshot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(copySilence, cancel)
	defer silence.Stop()
	res, err := n.ask(ctx, node, method, verb, path...)
	if err != nil {
		return storage.Snapshot{}, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return storage.Snapshot{}, nodeRefusal(node, verb, res)
	}
	snapshot, err := progress(res.Body, func() { silence.Reset(copySilence) }, copied)
	if err != nil {
		return storage.Snapshot{}, fmt.Errorf("node %q could not %s the volume: %w", node.Name, verb, err)
	}
	return snapshot, nil
}

// progress reads the lines of a copying node's response to the end. It calls heard for each line, and copied with
// the number of bytes copied so far.
func progress(from io.Reader, heard func(), copied func(uint64)) (storage.Snapshot, error) {
	answer := json.NewDecoder(io.LimitReader(from, maxCopyAnswer))
	for {
		var p storage.CopyProgress
		if err := answer.Decode(&p); err != nil {
			return storage.Snapshot{}, fmt.Errorf("its answer ended early: %w", err)
		}
		heard()
		switch {
		case p.Busy:
			return storage.Snapshot{}, storage.ErrBusy
		case p.Error != "":
			return storage.Snapshot{}, errors.New(bounded.Text(p.Error, maxNodeError))
		case p.Done && p.Snapshot != nil:
			return *p.Snapshot, nil
		case p.Done:
			return storage.Snapshot{}, nil
		case p.Copied > 0:
			copied(p.Copied)
		}
	}
}
