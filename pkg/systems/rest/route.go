package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// Route is one operation of the API. The OpenAPI description is generated from the routes.
type Route struct {
	// Method and Path form a pattern of http.ServeMux: GET /api/v1/tasks/{id}.
	Method, Path string
	Summary      string
	Query        []Parameter
	Headers      []Parameter
	// Body is a value of the request body's type; nil if there is no body.
	Body any
	// Status and Answer are the success: its status, 200 if zero, and a value of the answer's type; nil means
	// text/event-stream.
	Status int
	Answer any
	// Refusals are the statuses of errors, without the ones that follow from the rest of the route (see common).
	Refusals []int
	// Public routes need no token.
	Public bool
	// Stream marks an answer without a deadline.
	Stream bool
	// Handle serves a request. Its error becomes the answer.
	Handle func(*Call) error
}

// Parameter describes a query parameter or header.
type Parameter struct {
	Name, Description string
	// Value is a value of the parameter's type: "", 0 or false.
	Value any
}

// Call is one request.
type Call struct {
	context.Context
	Request *http.Request
	w       http.ResponseWriter
	server  *Server
}

// Param returns a parameter of the path.
func (c *Call) Param(name string) string { return c.Request.PathValue(name) }

// Remote returns the address of the client.
func (c *Call) Remote() netip.Addr {
	a, err := netip.ParseAddrPort(c.Request.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// number returns an integer query parameter, or otherwise if it is absent. A value out of range is an error.
func (c *Call) number(name string, otherwise, least, most int) (int, error) {
	value := c.Request.URL.Query().Get(name)
	if value == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return 0, Refuse(http.StatusBadRequest, "invalid %s parameter", name)
	}
	return n, nil
}

// Decode reads the JSON body. As with Podling, unknown fields are ignored.
func (c *Call) Decode(into any) error {
	t, _, err := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	merges := c.Request.Method == http.MethodPatch && t == "application/merge-patch+json"
	if err != nil || t != "application/json" && !merges {
		return Refuse(http.StatusBadRequest, "invalid request: the content type must be application/json")
	}
	free, err := slot(c, c.server.bodies)
	if err != nil {
		return err
	}
	defer free()
	deadline := http.NewResponseController(c.w)
	_ = deadline.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := bounded.All(c.Request.Body, maxBody)
	_ = deadline.SetReadDeadline(time.Time{})
	if err != nil {
		if _, ok := errors.AsType[*bounded.TooLargeError](err); ok {
			return Refuse(http.StatusRequestEntityTooLarge, "invalid request: the body is larger than %d bytes", maxBody)
		}
		return Refuse(http.StatusBadRequest, "invalid request: %v", err)
	}
	if err := decode(data, into); err != nil {
		return Refuse(http.StatusBadRequest, "invalid request: %v", err)
	}
	return nil
}

const maxDepth = 32

func decode(data []byte, into any) error {
	var n bounded.Nesting
	for _, b := range data {
		if n.Next(b) && n.Depth > maxDepth {
			return fmt.Errorf("nested deeper than %d levels", maxDepth)
		}
	}
	return json.Unmarshal(data, into)
}

// Answer writes a JSON answer.
func (c *Call) Answer(status int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	write(c.w, status, append(data, '\n'))
	return nil
}

func write(w http.ResponseWriter, status int, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

func fail(w http.ResponseWriter, status int, message string) {
	data, _ := json.Marshal(wire.Error{Error: message})
	write(w, status, append(data, '\n'))
}

// sayOnly answers with the name of a status, as Podling does for unknown paths and methods.
func sayOnly(w http.ResponseWriter, status int) {
	data, _ := json.Marshal(wire.Message{Message: http.StatusText(status)})
	write(w, status, append(data, '\n'))
}

// common returns the statuses of errors that follow from a route's form.
func common(r *Route) []int {
	list := []int{http.StatusForbidden}
	if !r.Public {
		list = append(list, http.StatusUnauthorized, http.StatusInternalServerError, http.StatusServiceUnavailable)
	}
	if r.Body != nil {
		list = append(list, http.StatusRequestEntityTooLarge)
	}
	if r.Body != nil || slices.ContainsFunc(r.Query, func(p Parameter) bool { return p.Value == 0 }) {
		list = append(list, http.StatusBadRequest)
	}
	if strings.Contains(r.Path, "{") {
		list = append(list, http.StatusNotFound)
	}
	return list
}

type router struct {
	mux    *http.ServeMux
	routes []*Route
}

// newRouter returns a router. It panics if two routes conflict, which is a programming error.
func newRouter(s *Server, resources ...Resource) *router {
	t := &router{mux: http.NewServeMux()}
	methods := map[string][]string{}
	for _, resource := range resources {
		for _, r := range resource.Routes() {
			t.routes = append(t.routes, &r)
			methods[r.Path] = append(methods[r.Path], r.Method)
			t.mux.HandleFunc(r.Method+" "+r.Path, s.serve(&r))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(methods)) {
		has := slices.Sorted(slices.Values(methods[path]))
		t.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions && r.Header.Get("Origin") != "" {
				// A preflight request carries no credentials.
				if err := s.guard(w, r, &Route{Public: true}); err != nil {
					s.refuse(w, r, err)
					return
				}
				preflight(w, has)
				return
			}
			if err := s.guard(w, r, nil); err != nil {
				s.refuse(w, r, err)
				return
			}
			w.Header().Set("Allow", strings.Join(append(has, http.MethodOptions), ", "))
			sayOnly(w, http.StatusMethodNotAllowed)
		})
	}
	t.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if err := s.guard(w, r, nil); err != nil {
			s.refuse(w, r, err)
			return
		}
		sayOnly(w, http.StatusNotFound)
	})
	return t
}

func (s *Server) serve(route *Route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if !route.Stream {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, requestTimeout)
			defer cancel()
		}
		call := &Call{Context: ctx, Request: r.WithContext(ctx), w: w, server: s}
		err := s.guard(w, r, route)
		if err == nil {
			err = route.Handle(call)
		}
		if err != nil {
			s.refuse(w, r, err)
		}
	}
}
