package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

const (
	maxOutput  = 10 << 10
	maxHeaders = 64 << 10
)

// errored is an error of the node or of the specification. It says nothing about the container, so that it counts
// neither as a failure nor as a success, as in the kubelet.
type errored struct{ error }

// do runs a probe once. It returns an error if the probe failed. A warning accompanies a success.
func (m *Manager) do(ctx context.Context, p *corev1.Probe, t Target) (warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case p.Exec != nil:
		command := p.Exec.Command
		if t.Expand != nil {
			if command, err = t.Expand(command); err != nil {
				return "", errored{err}
			}
		}
		_, err = Exec(ctx, m.runtime, t.ContainerID, command)
		return "", err
	case p.HTTPGet != nil:
		res, err := m.client.HTTPGet(ctx, p.HTTPGet, t, "kube-probe/1.37")
		switch {
		case err != nil:
			return "", err
		case res.Status < 200 || res.Status >= 400:
			return "", fmt.Errorf("HTTP probe failed with statuscode: %d", res.Status)
		case res.Status >= 300:
			return "Probe terminated redirects, Response body: " + res.Body, nil
		}
		return "", nil
	case p.TCPSocket != nil:
		return "", m.tcp(ctx, p.TCPSocket, t)
	case p.GRPC != nil:
		return "", m.grpc(ctx, p.GRPC, t)
	}
	return "", errored{errors.New("missing probe handler")}
}

// Exec runs a command in the container. It fails unless the command exits with 0 before ctx is done.
func Exec(ctx context.Context, rt runtime.Runtime, id string, command []string) (string, error) {
	out := bounded.NewBuffer(maxOutput)
	code, err := rt.Exec(ctx, id, runtime.Exec{Command: command, Streams: runtime.Streams{Out: out, Err: out}})
	text := out.String()
	if ctx.Err() != nil {
		return text, fmt.Errorf("command timed out: %q timed out", strings.Join(command, " "))
	}
	if err != nil {
		return text, errored{err}
	}
	if code != 0 {
		if text == "" {
			text = fmt.Sprintf("command %q exited with %d", strings.Join(command, " "), code)
		}
		return text, errors.New(text)
	}
	return text, nil
}

// Response is the response to an HTTP probe or hook, with at most 10 KiB of the body.
type Response struct {
	Status int
	Body   string
}

// HTTPGet sends the request of an action. An error status is a Response, not an error. Of the target it needs the
// container, the pod's IP, and whether the pod is in the host's network.
func (c *Client) HTTPGet(ctx context.Context, a *corev1.HTTPGetAction, t Target, agent string) (Response, error) {
	port, err := Port(a.Port.String(), t.Container)
	if err != nil {
		return Response{}, errored{err}
	}
	host := cmp.Or(a.Host, t.PodIP)
	scheme := strings.ToLower(string(a.Scheme))
	scheme = cmp.Or(scheme, "http")
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path}
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Response{}, errored{err}
	}
	for _, h := range a.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
		}
		req.Header.Add(h.Name, h.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", agent)
	}
	if _, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	}
	res, err := c.to(a.Host, t).http.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	if err != nil {
		return Response{}, err
	}
	return Response{res.StatusCode, string(body)}, nil
}

// Port returns a port from its number or from its name in the container.
func Port(s string, c *corev1.Container) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 65535 {
			return 0, fmt.Errorf("invalid port number: %d", n)
		}
		return n, nil
	}
	for _, p := range c.Ports {
		if p.Name == s {
			return int(p.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("couldn't find port: %q in container %q", s, c.Name)
}

func (m *Manager) tcp(ctx context.Context, a *corev1.TCPSocketAction, t Target) error {
	port, err := Port(a.Port.String(), t.Container)
	if err != nil {
		return errored{err}
	}
	host := cmp.Or(a.Host, t.PodIP)
	conn, err := m.client.to(a.Host, t).dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (m *Manager) grpc(ctx context.Context, a *corev1.GRPCAction, t Target) error {
	addr := net.JoinHostPort(t.PodIP, strconv.Itoa(int(a.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("kube-probe/1.37"), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	req := &healthpb.HealthCheckRequest{}
	if a.Service != nil {
		req.Service = *a.Service
	}
	res, err := healthpb.NewHealthClient(conn).Check(ctx, req)
	switch {
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
			status.Convert(err).Message())
	case status.Code(err) == codes.DeadlineExceeded:
		return errors.New("timeout: health rpc did not complete in time")
	case err != nil:
		return fmt.Errorf("service unhealthy: %s", status.Convert(err).Message())
	case res.Status != healthpb.HealthCheckResponse_SERVING:
		return fmt.Errorf("service unhealthy (responded with %q)", res.Status)
	}
	return nil
}
