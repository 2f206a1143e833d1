package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// debugPath is the prefix of the paths that Config.Debug serves. As for all non-resource paths, RBAC decides access.
const debugPath = "/debug/"

// profilesPath is the prefix of Go's profiles, as upstream.
const profilesPath = debugPath + "pprof/"

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(strings.TrimSuffix(profilesPath, "/"), http.RedirectHandler(profilesPath, http.StatusFound))
	mux.HandleFunc(profilesPath, pprof.Index)
	mux.HandleFunc(profilesPath+"profile", pprof.Profile)
	mux.HandleFunc(profilesPath+"symbol", pprof.Symbol)
	mux.HandleFunc(profilesPath+"trace", pprof.Trace)
	return mux
}

func (s *Server) nonResource(w http.ResponseWriter, req *http.Request) {
	page := s.page(req.URL.Path)
	switch {
	case page == nil && s.discover(w, req):
	case page == nil:
		s.notFound(w, req)
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		s.wrongMethod(w, req)
	default:
		page(w, req)
	}
}

// page returns the handler for a path that is not a discovery path, or nil.
func (s *Server) page(path string) http.HandlerFunc {
	switch {
	case path == "/":
		return s.root
	case path == "/version" || path == "/version/":
		return func(w http.ResponseWriter, req *http.Request) { s.writePlainJSON(w, req, s.cfg.Version) }
	case isHealth(path):
		return s.health.ServeHTTP
	case path == "/metrics/slis":
		return s.health.handler.ServeHTTP
	case path == "/metrics":
		return s.metrics.handler.ServeHTTP
	case s.cfg.Profiling && (path+"/" == profilesPath || strings.HasPrefix(path, profilesPath)):
		return s.profiles.ServeHTTP
	case path == statusz.DefaultStatuszPath || s.cfg.Flags != nil && path == flagz.DefaultFlagzPath:
		return s.about().ServeHTTP
	case s.cfg.Debug != nil && strings.HasPrefix(path, debugPath):
		return s.cfg.Debug.ServeHTTP
	case path == "/openapi/v2":
		return func(w http.ResponseWriter, req *http.Request) { s.openapi().serveV2(s, w, req) }
	case path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return func(w http.ResponseWriter, req *http.Request) { s.openapi().serveV3(s, w, req) }
	case s.openIDs && (path == serviceaccount.OpenIDConfigPath || path == serviceaccount.JWKSPath):
		return s.openID
	}
	return nil
}

func (s *Server) root(w http.ResponseWriter, req *http.Request) {
	paths := s.paths()
	if s.cfg.Flags != nil {
		paths = append(paths, flagz.DefaultFlagzPath)
	}
	paths = append(paths, statusz.DefaultStatuszPath)
	slices.Sort(paths)
	s.writePlainJSON(w, req, metav1.RootPaths{Paths: paths})
}

// paths lists the served paths, except for zpages and profiles, which upstream does not list.
func (s *Server) paths() []string {
	paths := []string{"/api", "/api/v1", "/apis"}
	if s.openIDs {
		paths = append(paths, serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath)
	}
	for _, g := range s.disc().groups {
		paths = append(paths, "/apis/"+g.Name)
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
	}
	paths = append(paths, "/metrics", "/metrics/slis", "/openapi/v2", "/openapi/v3", "/version", "/healthz", "/livez",
		"/readyz")
	for i := range s.health.checks {
		c := &s.health.checks[i]
		for _, endpoint := range []string{"healthz", "livez", "readyz"} {
			if c.in(endpoint) {
				paths = append(paths, "/"+endpoint+"/"+c.Name)
			}
		}
	}
	return paths
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

// discoverable reports whether the issuer can be published by upstream's rules. If not, it logs why.
func (s *Server) discoverable() bool {
	if s.auth.accounts == nil {
		return false
	}
	if _, err := s.metadata("localhost"); err != nil {
		s.log.Warn("the service account issuer is not discoverable: "+serviceaccount.OpenIDConfigPath+" and "+
			serviceaccount.JWKSPath+" are not served", "error", err)
		return false
	}
	return true
}

func (s *Server) metadata(host string) (serviceaccount.OpenIDMetadataProvider, error) {
	return serviceaccount.NewOpenIDMetadataProvider(s.cfg.Issuers[0], s.cfg.KeysURL, host, s.auth.accounts)
}

// openID serves the issuer's metadata and the keys that verify service account tokens (OpenID Connect Discovery
// 1.0).
func (s *Server) openID(w http.ResponseWriter, req *http.Request) {
	p, err := s.metadata(req.Host)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	var raw []byte
	var age int
	if req.URL.Path == serviceaccount.JWKSPath {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		raw, age = p.GetKeysetJSON()
	} else {
		w.Header().Set("Content-Type", typeJSON)
		raw, age = p.GetConfigJSON()
	}
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", age))
	s.writeBytes(w, req, http.StatusOK, raw)
}
