package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/component-base/compatibility"
)

// zpages are the pages about this process that members of system:monitoring may read (KEP-4827 and KEP-4828).
func (s *Server) zpages() http.Handler {
	const name = "apiserver" // as upstream's
	mux := http.NewServeMux()
	paths := s.paths()
	if s.cfg.Flags != nil {
		flagz.Install(mux, name, flags(s.cfg.Flags))
		paths = append(paths, flagz.DefaultFlagzPath)
	}
	statusz.Install(mux, name, statusz.NewRegistry(compatibility.NewEffectiveVersionFromString(s.cfg.Version.GitVersion, "", ""), statusz.WithListedPaths(paths)))
	return mux
}

// flags implements flagz.Reader.
type flags map[string]string

// GetFlagz implements flagz.Reader.
func (f flags) GetFlagz() map[string]string { return f }
