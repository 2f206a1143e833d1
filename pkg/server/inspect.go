package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// debugPath is the path of the debug endpoints, served by the API server to authorized users and on the control socket.
const debugPath = "/debug/coracle/"

const shownFlows = 20

func (l *plane) inspection() *http.ServeMux {
	mux := http.NewServeMux()
	serve := func(name string, f func() any) {
		mux.HandleFunc("GET "+debugPath+name, func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, f()) })
	}
	serve("cache", func() any { return l.cacheReport() })
	serve("reconcilers", func() any { return l.reconcilersReport() })
	serve("fairness", func() any { return l.fairnessReport() })
	mux.HandleFunc("GET "+debugPath+"schedule", l.inspectSchedule())
	serve("store", func() any {
		s := l.store.Stats()
		return socket.StoreReport{
			Revision: s.Revision, CompactedRevision: s.Compacted, SizeBytes: s.SizeBytes, UsedBytes: s.UsedBytes,
			QuotaBytes:    s.QuotaBytes,
			DiskFreeBytes: s.DiskFreeBytes, DiskMinFreeBytes: s.DiskMinFreeBytes, Members: s.Members, Warning: l.store.Warning(),
		}
	})
	return mux
}

func answerJSON(w http.ResponseWriter, v any) {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(raw, '\n'))
}

func (l *plane) cacheReport() socket.CacheReport {
	sizes := l.cache.Sizes()
	r := socket.CacheReport{Revision: l.cache.Revision(), Kinds: []socket.CacheKind{}}
	for _, s := range l.cache.Stats() {
		size := sizes[s.GroupResource]
		r.Kinds = append(r.Kinds, socket.CacheKind{
			Group: s.Group, Version: s.Version, Resource: s.Resource, Objects: s.Objects, ObjectBytes: size.Objects,
			EncodingBytes: size.Encodings,
			Revision:      s.Revision, OldestRevision: s.Oldest, Watchers: s.Watchers, Ring: s.Ring, RingLimit: s.RingLimit,
			Changes: s.Changes, Expired: s.Expired, Refused: s.Refused,
		})
	}
	slices.SortFunc(r.Kinds, func(a, b socket.CacheKind) int {
		return cmp.Or(cmp.Compare(b.ObjectBytes+b.EncodingBytes, a.ObjectBytes+a.EncodingBytes),
			cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Group, b.Group))
	})
	return r
}

func (l *plane) reconcilersReport() socket.ReconcilersReport {
	r := socket.ReconcilersReport{Reconcilers: []socket.Reconciler{}}
	controllers, ok := l.controllers.leads()
	if !ok { // they run on another server
		return r
	}
	for _, s := range controllers.Report() {
		v := socket.Reconciler{
			Name: s.Name, Identity: s.Identity, Watches: s.Watches, Reads: s.Reads, Writes: s.Writes, Synced: s.Synced,
			Queued: s.Queued, Delayed: s.Delayed, Running: s.Running, Workers: s.Workers, BackingOff: s.Failing,
			Crashes: s.Crashes, LastCrash: s.LastCrash,
		}
		for _, f := range s.Failures {
			v.Failures = append(v.Failures, socket.Failure(f))
		}
		r.Reconcilers = append(r.Reconcilers, v)
	}
	return r
}

func (l *plane) fairnessReport() socket.FairnessReport {
	r := socket.FairnessReport{Levels: []socket.FairnessLevel{}}
	for _, s := range l.apiserver.Fairness(shownFlows) {
		v := socket.FairnessLevel{
			Name: s.Name, Exempt: s.Exempt, Seats: s.Seats, Guaranteed: s.Guaranteed, FlowLimit: s.FlowLimit,
			Executing: s.Executing,
			Waiting:   s.Waiting, Dispatched: s.Dispatched, Rejected: s.Rejected, FlowCount: s.FlowCount,
		}
		for _, f := range s.Flows {
			v.Flows = append(v.Flows, socket.FairnessFlow{
				Schema:    f.Schema,
				Flow:      f.Name,
				Executing: f.Executing,
				Waiting:   f.Waiting,
				Streams:   f.Streams,
				BodyBytes: f.BodyBytes,
			})
		}
		r.Levels = append(r.Levels, v)
	}
	return r
}

const masked = "(masked)"

// Debug implements socket.Backend. It serves inspection, the metrics, and the options with secrets masked.
func (p *process) Debug() http.Handler {
	mux := http.NewServeMux()
	metrics := func(name string, g prometheus.Gatherer) {
		mux.Handle("GET "+debugPath+"metrics/"+name, promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	}
	if p.plane != nil {
		mux.Handle("GET "+debugPath, p.plane.inspection())
		metrics("control-plane", append(prometheus.Gatherers{p.metrics.plane}, p.plane.gatherers()...))
	}
	if p.node != nil {
		metrics("node", p.metrics.node)
	}
	mux.HandleFunc("GET "+debugPath+"options", func(w http.ResponseWriter, _ *http.Request) {
		c := p.Config
		if c.Token != "" {
			c.Token = masked
		}
		answerJSON(w, map[string]any{"instance": instance(c), "options": c})
	})
	return mux
}
