package socket

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Authorities is the state of a cluster's CAs.
type Authorities struct {
	List      []Authority `json:"authorities"`
	Replacing bool        `json:"replacing"`
	// Behind lists the nodes and users known to depend on a CA that is being replaced.
	Behind []Behind `json:"behind,omitempty"`
	// Pods is the number of running pods that started before the API's CA was replaced and may not have read the
	// new one.
	Pods int `json:"pods,omitempty"`
}

// Authority is a CA: server, client or node. Replaces is the CA that it replaces, or nil.
type Authority struct {
	Name     string     `json:"name"`
	Until    time.Time  `json:"until"`
	Replaces *Authority `json:"replaces,omitempty"`
}

// Behind is a node or user that would be locked out, and why. Last is the time of the user's last request.
type Behind struct {
	Node    string     `json:"node,omitempty"`
	User    string     `json:"user,omitempty"`
	Last    *time.Time `json:"last,omitempty"`
	Problem string     `json:"problem"`
}

func (b Behind) String() string {
	if b.Node != "" {
		return fmt.Sprintf("node %s %s", b.Node, b.Problem)
	}
	text := fmt.Sprintf("user %s %s", b.User, b.Problem)
	if b.Last != nil {
		text += ", last " + b.Last.Local().Format(time.DateTime)
	}
	return text
}

// Authorities returns the state of the server's CAs.
func (c *Client) Authorities(ctx context.Context) (Authorities, error) {
	return c.authorities(ctx, http.MethodGet, "/certs/authorities")
}

// ReplaceAuthorities makes the server replace the named CAs, or all if names is empty. From then on the old and new
// CAs are trusted.
func (c *Client) ReplaceAuthorities(ctx context.Context, names []string) (Authorities, error) {
	return c.authorities(ctx, http.MethodPost, "/certs/authorities?"+url.Values{"name": names}.Encode())
}

// FinishAuthorities removes the replaced CAs from the trust bundles. Without force it fails while nodes or users
// depend on them.
func (c *Client) FinishAuthorities(ctx context.Context, names []string, force bool) (Authorities, error) {
	query := url.Values{"name": names, "finish": {""}}
	if force {
		query.Set("force", "")
	}
	return c.authorities(ctx, http.MethodPost, "/certs/authorities?"+query.Encode())
}

func (c *Client) authorities(ctx context.Context, method, path string) (Authorities, error) {
	last, err := c.call(ctx, method, path, nil, nil, 0)
	if err != nil {
		return Authorities{}, err
	}
	if last.Authorities == nil {
		return Authorities{}, errors.New("the process responded without its authorities")
	}
	return *last.Authorities, nil
}

func (s *Server) serveAuthorities(mux *http.ServeMux) {
	answer := func(w http.ResponseWriter, state Authorities, err error) {
		progress := newProgressWriter(w)
		if err != nil {
			progress(Event{Error: err.Error()})
			return
		}
		progress(Event{Authorities: &state, Done: true})
	}
	mux.HandleFunc("GET /certs/authorities", func(w http.ResponseWriter, r *http.Request) {
		state, err := s.backend.Authorities(r.Context())
		answer(w, state, err)
	})
	mux.HandleFunc("POST /certs/authorities", func(w http.ResponseWriter, r *http.Request) {
		query, ctx := r.URL.Query(), context.WithoutCancel(r.Context()) // continue if the client disconnects
		if !query.Has("finish") {
			state, err := s.backend.ReplaceAuthorities(ctx, query["name"])
			answer(w, state, err)
			return
		}
		state, err := s.backend.FinishAuthorities(ctx, query["name"], query.Has("force"))
		answer(w, state, err)
	})
}
