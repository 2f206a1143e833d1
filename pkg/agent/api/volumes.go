package api

import (
	"errors"
	"net/http"

	"github.com/coracle-dev/coracle/pkg/agent/volume"
)

// removeVolume removes the directory of a volume that was provisioned on this node: 204, or 409 while a pod uses it. A request that ends early
// leaves the rest to the next one.
func (s *Server) removeVolume(w http.ResponseWriter, r *http.Request) {
	err := s.c.Pods.Directories().Remove(r.Context(), r.PathValue("volume"))
	switch {
	case errors.Is(err, volume.ErrInUse):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
