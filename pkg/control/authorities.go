package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Authorities are a cluster's certificate authorities.
type Authorities struct {
	List      []Authority `json:"authorities"`
	Replacing bool        `json:"replacing"`
	// Behind are those that still depend on an authority that is being replaced, as far as the server knows.
	Behind []Behind `json:"behind,omitempty"`
	// Pods is how many were given the API's old authority, and may have read it only then.
	Pods int `json:"pods,omitempty"`
}

// Authority is one of them: server, client or node. Replaces is what it is replacing; nil if nothing.
type Authority struct {
	Name     string     `json:"name"`
	Since    time.Time  `json:"since"`
	Until    time.Time  `json:"until"`
	Replaces *Authority `json:"replaces,omitempty"`
}

// Behind is a node or a user, and why it would be shut out. Last is when the user's last request was.
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

// Authorities asks the server for the state of its certificate authorities.
func (c *Client) Authorities(ctx context.Context) (Authorities, error) {
	return c.authorities(ctx, http.MethodGet, "/certs/authorities")
}

// ReplaceAuthorities makes the server replace the authorities of the names, or all if there are none. Both old and new are trusted then.
func (c *Client) ReplaceAuthorities(ctx context.Context, names []string) (Authorities, error) {
	return c.authorities(ctx, http.MethodPost, "/certs/authorities?"+url.Values{"name": names}.Encode())
}

// FinishAuthorities ends the trust in what was replaced. Without force it is refused while somebody depends on it.
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
		return Authorities{}, errors.New("the process answered without its authorities")
	}
	return *last.Authorities, nil
}

func (s *Server) serveAuthorities(mux *http.ServeMux) {
	answer := func(w http.ResponseWriter, state Authorities, err error) {
		tell := newTeller(w)
		if err != nil {
			tell(Event{Error: err.Error()})
			return
		}
		tell(Event{Authorities: &state, Done: true})
	}
	mux.HandleFunc("GET /certs/authorities", func(w http.ResponseWriter, r *http.Request) {
		state, err := s.backend.Authorities(r.Context())
		answer(w, state, err)
	})
	mux.HandleFunc("POST /certs/authorities", func(w http.ResponseWriter, r *http.Request) {
		query, ctx := r.URL.Query(), context.WithoutCancel(r.Context()) // who asked may go away
		if !query.Has("finish") {
			state, err := s.backend.ReplaceAuthorities(ctx, query["name"])
			answer(w, state, err)
			return
		}
		state, err := s.backend.FinishAuthorities(ctx, query["name"], query.Has("force"))
		answer(w, state, err)
	})
}
