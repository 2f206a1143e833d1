package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// debugPath is the prefix of the paths of Config.Debug. RBAC decides who may read them, as for all non-resource paths:
// administrators, and roles with them in nonResourceURLs.
const debugPath = "/debug/"

// nonResource serves all non-resource paths.
func (s *Server) nonResource(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.wrongMethod(w, req)
		return
	}
	switch {
	case path == "/":
		s.root(w, req)
	case path == "/version" || path == "/version/":
		s.writePlainJSON(w, req, s.cfg.Version)
	case isHealth(path):
		s.health.ServeHTTP(w, req)
	case path == "/metrics/slis":
		s.health.handler.ServeHTTP(w, req)
	case path == "/metrics":
		s.metrics.handler.ServeHTTP(w, req)
	case s.cfg.Debug != nil && strings.HasPrefix(path, debugPath):
		s.cfg.Debug.ServeHTTP(w, req)
	case path == "/openapi/v2":
		s.openapi().serveV2(s, w, req)
	case path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		s.openapi().serveV3(s, w, req)
	case path == "/.well-known/openid-configuration" || path == "/openid/v1/jwks":
		s.openID(w, req)
	case s.discover(w, req):
	default:
		s.notFound(w, req)
	}
}

func (s *Server) root(w http.ResponseWriter, req *http.Request) {
	paths := []string{"/.well-known/openid-configuration", "/api", "/api/v1", "/apis"}
	for _, g := range s.disc().groups {
		paths = append(paths, "/apis/"+g.Name)
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
	}
	paths = append(paths, "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/version", "/healthz", "/livez", "/readyz")
	for i := range s.health.checks {
		c := &s.health.checks[i]
		for _, endpoint := range []string{"healthz", "livez", "readyz"} {
			if c.in(endpoint) {
				paths = append(paths, "/"+endpoint+"/"+c.Name)
			}
		}
	}
	slices.Sort(paths)
	s.writePlainJSON(w, req, metav1.RootPaths{Paths: paths})
}

// writePlainJSON responds with a value that is not an API object, indented as upstream does.
func (s *Server) writePlainJSON(w http.ResponseWriter, req *http.Request, v any) {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.fail(w, req, err)
		return
	}
	w.Header().Set("Content-Type", typeJSON)
	s.writeBytes(w, req, http.StatusOK, raw)
}

// openID publishes the keys that verify service account tokens (OpenID Connect Discovery 1.0).
func (s *Server) openID(w http.ResponseWriter, req *http.Request) {
	if s.auth.accounts == nil {
		s.notFound(w, req)
		return
	}
	p, err := serviceaccount.NewOpenIDMetadataProvider(s.cfg.Issuer, "", req.Host, s.auth.accounts)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	var raw []byte
	var age int
	if req.URL.Path == "/openid/v1/jwks" {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		raw, age = p.GetKeysetJSON()
	} else {
		w.Header().Set("Content-Type", typeJSON)
		raw, age = p.GetConfigJSON()
	}
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", age))
	s.writeBytes(w, req, http.StatusOK, raw)
}
