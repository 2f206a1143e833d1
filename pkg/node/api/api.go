// Package api serves the node's API at the kubelet's paths: health, pods, logs, exec, attach, port-forward, usage.
//
// Its invariant: it serves only the API server and callers that the API server authorizes.
package api

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/part"
	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Config configures a Server.
type Config struct {
	Pods    *pod.Manager
	Runtime runtime.Runtime
	Network network.Network
	// Client authenticates and authorizes callers with TokenReviews and SubjectAccessReviews.
	Client client.Interface
	LogDir string
	// Parts are extensions whose routes are served.
	Parts []part.Part
	// HostLogDir is the directory of the machine's logs; default /var/log.
	HostLogDir string
	NodeName   string
	Node       func() *corev1.Node
	// Trusted reports whether a client certificate may do everything; nil means the API server's usual names.
	Trusted func(*x509.Certificate) bool
	Logger  *slog.Logger
	// Metrics is served at /metrics.
	Metrics prometheus.Gatherer
	// Usage returns the disk usage of the pods that were measured, by UID.
	Usage func(context.Context) map[types.UID]*eviction.Usage
	// Kubelet returns the fields of a KubeletConfiguration that apply to this node, for /configz.
	Kubelet func() map[string]any
}

// Server serves the node's API.
type Server struct {
	c   Config
	mux *http.ServeMux
	// reviews authenticates and authorizes callers.
	reviews *reviews
	// ctx ends the streams when the Server stops.
	ctx      context.Context
	forwards forwards
	began    time.Time
}

// scrapes limits concurrent reads of /metrics.
const scrapes = 8

// New returns a Server.
func New(c Config) *Server {
	s := &Server{c: c, mux: http.NewServeMux(), reviews: newReviews(c.Client), began: time.Now(),
		ctx: context.Background()}
	s.c.HostLogDir = cmp.Or(s.c.HostLogDir, "/var/log")
	if s.c.Trusted == nil {
		s.c.Trusted = func(c *x509.Certificate) bool {
			return c.Subject.CommonName == "kube-apiserver-kubelet-client" ||
				slices.Contains(c.Subject.Organization, "system:masters")
		}
	}
	s.mux.Handle("DELETE /localVolumes/{volume}", s.allow(s.removeVolume, "", "proxy"))
	s.mux.Handle("PUT /localVolumes/{volume}/size/{bytes}", s.allow(s.resizeVolume, "", "proxy"))
	s.mux.Handle("POST /localVolumes/{volume}/size/{bytes}/from/{kind}/{source}", s.allow(s.fillVolume, "", "proxy"))
	s.mux.Handle("POST /localSnapshots/{snapshot}/of/{volume}/size/{bytes}", s.allow(s.takeSnapshot, "", "proxy"))
	s.mux.Handle("GET /localSnapshots/{snapshot}", s.allow(s.findSnapshot, "", "proxy"))
	s.mux.Handle("DELETE /localSnapshots/{snapshot}", s.allow(s.removeSnapshot, "", "proxy"))
	get := func(pattern string, h http.HandlerFunc, subresources ...string) {
		s.mux.Handle(pattern, s.allow(h, "", subresources...))
	}
	healthy := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }
	get("GET /healthz", healthy, "healthz", "proxy")
	get("GET /healthz/ping", healthy, "healthz", "proxy")
	get("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"kubeletconfig": s.c.Kubelet()})
	}, "configz", "proxy")
	get("GET /pods", s.pods, "pods", "proxy")
	get("GET /runningpods/{$}", s.runningPods, "pods", "proxy")
	get("GET /containerLogs/{namespace}/{pod}/{container}", s.logs, "proxy")
	get("GET /logs/{path...}", s.hostLogs, "log")
	get("GET /stats/summary", s.summary, "stats")
	get("GET /metrics/resource", s.resourceMetrics, "metrics")
	get("GET /metrics/cadvisor", s.containerMetrics, "metrics")
	get("GET /metrics/probes", s.probeMetrics, "metrics")
	get("GET /metrics", promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes}).ServeHTTP,
		"metrics")
	run := func(pattern string, h http.HandlerFunc) { s.mux.Handle(pattern, s.allow(h, "create", "proxy")) }
	for _, p := range []string{"{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"} {
		run("/exec/"+p, s.exec)
		run("/attach/"+p, s.attach)
		run("POST /run/"+p, s.run)
	}
	for _, part := range c.Parts {
		for _, r := range part.Routes() {
			run(r.Pattern, r.Handler)
		}
	}
	run("/portForward/{namespace}/{pod}", s.portForward)
	run("/portForward/{namespace}/{pod}/{uid}", s.portForward)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Serve serves on l until ctx is done, which also ends streams.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.ctx = ctx
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.c.Logger.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve the node's API: %w", err)
	case <-ctx.Done():
	}
	err := srv.Close()
	<-done
	return err
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.c.Pods.Pods() {
		list.Items = append(list.Items, *p)
	}
	reply(w, list)
}

// runningPods lists the pods that have a running container, each with these alone, as the kubelet does.
func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.c.Pods.Pods() {
		out := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		for _, name := range names(p) {
			runs := s.c.Pods.Instances(p.UID, name)
			if len(runs) > 0 && runs[0].State == runtime.Running {
				out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: name, Image: imageOf(p, name)})
			}
		}
		if len(out.Spec.Containers) > 0 {
			list.Items = append(list.Items, out)
		}
	}
	reply(w, list)
}

func imageOf(p *corev1.Pod, container string) string {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].Image
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if c := &p.Spec.EphemeralContainers[i]; c.Name == container {
			return c.Image
		}
	}
	return ""
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

var (
	errNoPod        = errors.New("pod does not exist")
	errTooMany      = errors.New("too many unknown tokens from this address: try again later")
	errUnauthorized = errors.New("Unauthorized") //nolint:staticcheck // the answer's text, as the kubelet's
)

// find returns a request's pod and the newest instance of its container, which is nil if there is none.
func (s *Server) find(r *http.Request) (*corev1.Pod, *pod.Instance, error) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.c.Pods.Find(namespace, name, types.UID(r.PathValue("uid")))
	if !ok {
		return nil, nil, fmt.Errorf("%w: %s/%s", errNoPod, namespace, name)
	}
	list := s.c.Pods.Instances(p.UID, container)
	if len(list) == 0 {
		return p, nil, nil
	}
	return p, &list[0], nil
}
