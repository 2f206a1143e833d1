package apiserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// filters returns the handler chain, outermost first: panic recovery, audit ID, request info, deadline,
// authentication, audit, impersonation, fairness, authorization, body, seat.
func (s *Server) filters() http.Handler {
	s.imp = impersonation.WithConstrainedImpersonation(http.HandlerFunc(s.authorized), s.auth, clientscheme.Codecs)
	s.rest = s.audited(http.HandlerFunc(s.authenticated))
	return http.HandlerFunc(s.serve)
}

func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	began := time.Now()
	if req.Method != http.MethodGet {
		growStack()
	}
	rec := &response{ResponseWriter: w}
	var out http.ResponseWriter = rec
	if _, ok := w.(http.Hijacker); ok {
		out = hijackable{rec}
	}
	info, err := s.info.NewRequestInfo(req)
	inflight := s.metrics.begin(info)
	defer func() {
		if inflight != nil {
			inflight.Add(-1)
		}
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it by identity too
				panic(p)
			}
			s.metrics.panics.Inc()
			s.log.Error("panic while serving request", "method", req.Method, "path", req.URL.Path, "panic", p, "stack",
				string(debug.Stack()))
			if rec.written {
				panic(http.ErrAbortHandler)
			}
			s.fail(out, req,
				apierrors.NewInternalError(errors.New("the server panicked while serving this request; see its log")))
		}
		s.metrics.observe(req, info, rec.status(), began)
	}()
	id := req.Header.Get("Audit-Id")
	if id == "" || len(id) > 64 {
		id = uuid.NewString()
	}
	h := out.Header()
	h.Set("Audit-Id", id)
	h.Set("Cache-Control", "no-cache, private")
	if req.ProtoMajor == 2 && rand.Float64() < s.cfg.GoawayChance {
		h.Set("Connection", "close") // makes net/http send GOAWAY
	}
	if err != nil {
		s.fail(out, req, apierrors.NewBadRequest(err.Error()))
		return
	}
	ctx := request.WithRequestInfo(req.Context(), info)
	if !s.longRunning(info) {
		allotted, err := s.allotted(req)
		if err != nil {
			s.fail(out, req, err)
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, began.Add(allotted))
		defer cancel()
	}
	ctx = request.WithReceivedTimestamp(ctx, began)
	ctx = warning.WithWarningRecorder(ctx, &warnings{header: h})
	if s.cfg.Audit != nil {
		ctx = audit.WithAuditContext(ctx)
		audit.WithAuditID(ctx, types.UID(id))
	}
	s.identify(out, req.WithContext(ctx))
}

// identify authenticates the request, unless its context already has a user, and serves it.
func (s *Server) identify(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	if _, known := request.UserFrom(ctx); !known {
		if publicHealth(req.URL.Path) && req.Header.Get("Authorization") == "" &&
			(req.Method == http.MethodGet || req.Method == http.MethodHead) {
			s.health.ServeHTTP(w, req)
			return
		}
		who, err := s.auth.authenticate(req)
		if who == nil && err == nil {
			who = s.auth.anonymous(req)
		}
		if who == nil {
			if err != nil {
				s.log.Debug("authentication failed", "path", req.URL.Path, "error", err)
			}
			s.refuseUnauthenticated(w, req, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		ctx = request.WithUser(ctx, who)
	}
	s.rest.ServeHTTP(w, req.WithContext(ctx))
}

func (s *Server) authenticated(w http.ResponseWriter, req *http.Request) {
	if impersonates(req.Header) {
		req.Header.Del("Authorization")
		s.imp.ServeHTTP(w, req)
		return
	}
	s.authorized(w, req)
}

// impersonates reports whether the request has any impersonation header. Upstream's filter refuses such headers
// without a user.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// longRunning reports whether a request has no deadline and no seat: watches, streams and profiles.
func longRunning(kinds *kind.Catalog, i *request.RequestInfo) bool {
	if !i.IsResourceRequest {
		return strings.HasPrefix(i.Path, profilesPath)
	}
	if i.Verb == "watch" || i.Verb == "proxy" {
		return true
	}
	switch i.Subresource { // also for kinds of aggregated API servers
	case "":
		return false
	case "proxy", "exec", "attach", "portforward", "log":
		return true
	}
	return streamOf(kinds, i) != nil
}

// streamOf returns the subresource that the request addresses if it is a byte stream, otherwise nil.
func streamOf(kinds *kind.Catalog, i *request.RequestInfo) *kind.Subresource {
	if !i.IsResourceRequest || i.Subresource == "" {
		return nil
	}
	r := kinds.Table().ByGVR(schema.GroupVersionResource{Group: i.APIGroup, Version: i.APIVersion, Resource: i.Resource})
	if r == nil {
		return nil
	}
	if sub := r.Subresource(i.Subresource); sub != nil && sub.Connect != nil {
		return sub
	}
	return nil
}

func (s *Server) longRunning(i *request.RequestInfo) bool { return longRunning(s.cfg.Kinds, i) }

func (s *Server) authorized(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	info, _ := request.RequestInfoFrom(ctx)
	who, _ := request.UserFrom(ctx)
	rec := recorded(w)
	class := s.fair.Classify(who, info)
	class.WriteHeader(w.Header())
	ticket, err := s.fair.Begin(class, s.longRunning(info))
	if err != nil {
		s.tooMany(w, req, err)
		return
	}
	rec.ticket = ticket
	defer rec.ticket.End()
	attrs, err := authfilters.GetAuthorizerAttributes(ctx)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	decision, reason, err := s.auth.Authorize(ctx, attrs)
	if s.cfg.Audit != nil {
		verdict := "allow"
		if decision != authorizer.DecisionAllow {
			verdict = "forbid"
		}
		audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", verdict, "authorization.k8s.io/reason", reason)
	}
	if decision != authorizer.DecisionAllow {
		if err != nil {
			s.log.Debug("authorization failed", "path", req.URL.Path, "error", err)
		}
		s.fail(w, req, responsewriters.ForbiddenStatusError(attrs, reason))
		return
	}
	if s.longRunning(info) {
		// A stream with MaxBody has an ordinary body; only its response may take long.
		if sub := streamOf(s.cfg.Kinds, info); sub != nil && sub.MaxBody > 0 {
			if err := s.receiveAtMost(w, req, &rec.ticket, sub); err != nil {
				s.tooMany(w, req, err)
				return
			}
		}
		defer s.metrics.running(req, info)()
		rec.unhurried(req, s.cfg.WriteStall)
	} else if err := s.holdBody(w, req, &rec.ticket); err != nil {
		s.tooMany(w, req, err)
		return
	}
	if info.Verb == "watch" || !s.longRunning(info) {
		if err := rec.ticket.Acquire(ctx); err != nil {
			s.tooMany(w, req, err)
			return
		}
	}
	if ctx.Err() != nil {
		s.fail(w, req, ctx.Err())
		return
	}
	s.dispatch(w, req, info)
}

// warnings writes Warning headers (RFC 7234, section 5.5), at most 4 KiB in one response.
type warnings struct {
	header http.Header
	size   int
	seen   []string
}

func (r *warnings) AddWarning(_, text string) {
	if text == "" || slices.Contains(r.seen, text) || r.size+len(text) > 4096 {
		return
	}
	r.seen = append(r.seen, text)
	r.size += len(text)
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ", "\r", " ").Replace(text)
	r.header.Add("Warning", `299 - "`+quoted+`"`)
}

// fail responds with the Status of err, in a media type that the client accepts.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(req.Context().Err(), context.DeadlineExceeded) && !s.longRunningContext(req.Context()) {
		err = errTimedOut() // the deadline has passed, whatever err says
	}
	status := statusOf(err)
	// 504 is not logged: clients can cause it with ?timeout=.
	if status.Code >= 500 && status.Code != http.StatusGatewayTimeout && !s.relayed(req) {
		s.failed.report(req, int(status.Code), err)
	}
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", itoa(int64(d.RetryAfterSeconds)))
	}
	auditStatus(req.Context(), status)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	n, nerr := negotiate(req, mayProto)
	if nerr != nil {
		n = answer{media: mediaJSON}
	}
	n.as = schema.GroupVersionKind{}
	s.writeObject(w, req, n, int(status.Code), status)
}

// relayed reports whether the request is proxied to a receiver outside this server, whose failures are not the
// server's.
func (s *Server) relayed(req *http.Request) bool {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok {
		return false
	}
	sub := streamOf(s.cfg.Kinds, info)
	return sub != nil && sub.Relays
}

func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		err = known.(error)
	case errors.Is(err, context.DeadlineExceeded):
		err = errTimedOut()
	case errors.Is(err, context.Canceled):
		err = apierrors.NewTimeoutError("the client closed the connection", 1)
	}
	return responsewriters.ErrorToAPIStatus(err)
}
