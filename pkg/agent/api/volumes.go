package api

import (
	"errors"
	"net/http"
	"strconv"

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

// resizeVolume sets the size of a volume that was provisioned on this node, where sizes are enforced: 204.
func (s *Server) resizeVolume(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("bytes"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.c.Pods.Directories().Resize(r.PathValue("volume"), size); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
