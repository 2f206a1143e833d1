package rest

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// guard refuses requests with a foreign host or origin, and requests without the token. It returns nil if the request
// may proceed.
func (s *Server) guard(w http.ResponseWriter, r *http.Request, route *Route) error {
	if s.cfg.RESTInsecure && !localHost(r.Host) {
		return Refuse(http.StatusForbidden, "host %q is not allowed: use localhost or a loopback address", r.Host)
	}
	if err := s.origin(w, r); err != nil {
		return err
	}
	if s.cfg.RESTInsecure || route != nil && route.Public {
		return nil
	}
	if err := s.token.check(sentToken(r, route != nil && route.Stream)); err != nil {
		if !errors.Is(err, errNoToken) {
			s.log.Error("could not read the token file, requests are refused", "error", err)
		}
		w.Header().Add("WWW-Authenticate", `Bearer realm="coracle"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="coracle"`)
		return Refuse(http.StatusUnauthorized, "%s", errNoToken.Error())
	}
	return nil
}

// localHost reports whether a Host header names localhost or a loopback address.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// origin sets the CORS headers of an allowed origin, and refuses others.
func (s *Server) origin(w http.ResponseWriter, r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	w.Header().Add("Vary", "Origin")
	scheme := "https://"
	if s.cfg.RESTInsecure {
		scheme = "http://"
	}
	own := origin == scheme+r.Host
	if !own && !slices.Contains(s.cfg.RESTCORSOrigins, strings.ToLower(origin)) &&
		!slices.Contains(s.cfg.RESTCORSOrigins, "*") {
		return Refuse(http.StatusForbidden, "origin %q is not allowed", origin)
	}
	w.Header().Set("Access-Control-Allow-Origin", origin)
	w.Header().Set("Access-Control-Expose-Headers", continueHeader)
	return nil
}

func preflight(w http.ResponseWriter, methods []string) {
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", strings.Join(methods, ", "))
	h.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, "+idempotencyHeader)
	h.Set("Access-Control-Max-Age", "600")
	h.Set("Allow", strings.Join(append(methods, http.MethodOptions), ", "))
	w.WriteHeader(http.StatusNoContent)
}
