package apiserver

import (
	"bytes"
	"net/http"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/compatibility"
)

// zpages serves the pages about this process that members of system:monitoring may read (KEP-4827, KEP-4828).
func (s *Server) zpages() http.Handler {
	const name = "apiserver" // upstream's component name
	mux := http.NewServeMux()
	paths := s.paths()
	if s.cfg.Flags != nil {
		flagz.Install(mux, name, flags(s.cfg.Flags))
		paths = append(paths, flagz.DefaultFlagzPath)
	}
	paths = append(paths, statusz.DefaultStatuszPath)
	statusz.Install(mux, name,
		statusz.NewRegistry(compatibility.NewEffectiveVersionFromString(s.cfg.Version.GitVersion, "", ""),
			statusz.WithListedPaths(paths)))
	// Upstream's handler writes to the client while it holds a lock that other requests need, so buffer its
	// response.
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p := &page{ResponseWriter: w, code: http.StatusOK}
		mux.ServeHTTP(p, req)
		w.WriteHeader(p.code)
		_, _ = w.Write(p.text.Bytes())
	})
}

type page struct {
	http.ResponseWriter
	code int
	text bytes.Buffer
}

func (p *page) WriteHeader(code int) { p.code = code }

func (p *page) Write(text []byte) (int, error) { return p.text.Write(text) }

type flags map[string]string

func (f flags) GetFlagz() map[string]string { return f }
