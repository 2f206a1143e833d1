package api

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
)

// Callers are authorized as by the kubelet (KEP-2862): a path requires its own subresource of nodes, or for some
// paths nodes/proxy. Unlike in the kubelet, paths that run commands in containers require the verb create even for a
// WebSocket, which begins with a GET: "get nodes/proxy", which monitoring often has, must not suffice.

// allow calls the handler if the caller may use one of the subresources of nodes. An empty verb is the method's.
func (s *Server) allow(h http.HandlerFunc, verb string, subresources ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, trusted, code, err := s.caller(r)
		switch {
		case err != nil:
			http.Error(w, err.Error(), code)
			return
		case trusted:
			h(w, r)
			return
		}
		want := cmp.Or(verb, verbOf(r.Method))
		for _, sub := range subresources {
			allowed, err := s.allowed(r.Context(), user, want, sub)
			if err != nil {
				http.Error(w, "could not authorize the request: "+err.Error(), http.StatusServiceUnavailable)
				return
			}
			if allowed {
				h(w, r)
				return
			}
		}
		http.Error(w,
			fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Username, want, subresources),
			http.StatusForbidden)
	})
}

// caller authenticates a request. Trusted callers may do everything. code is the HTTP status for an error.
func (s *Server) caller(r *http.Request) (user authnv1.UserInfo, trusted bool, code int, err error) {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		c := r.TLS.PeerCertificates[0]
		return userOf(c), s.c.Trusted(c), 0, nil
	case bearer && strings.TrimSpace(token) != "":
		user, code, err = s.reviews.user(r, strings.TrimSpace(token))
		return user, false, code, err
	default:
		return user, false, http.StatusUnauthorized, errUnauthorized
	}
}

func userOf(c *x509.Certificate) authnv1.UserInfo {
	return authnv1.UserInfo{Username: c.Subject.CommonName, Groups: append(c.Subject.Organization, "system:authenticated")}
}

func (s *Server) allowed(ctx context.Context, user authnv1.UserInfo, verb, subresource string) (bool, error) {
	extra := make(map[string]authzv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authzv1.ExtraValue(v)
	}
	return s.reviews.allowed(ctx, authzv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authzv1.ResourceAttributes{
			Version:     "v1",
			Resource:    "nodes",
			Subresource: subresource,
			Name:        s.c.NodeName,
			Verb:        verb,
		},
	})
}

func verbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}
