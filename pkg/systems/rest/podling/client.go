package podling

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

const (
	// patience bounds a request; streams are unbounded.
	patience = 30 * time.Second
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 256 << 20
	// maxCA bounds the CA file, in bytes.
	maxCA = 1 << 20
)

type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

func newClient(o options) (*client, error) {
	u, err := url.Parse(strings.TrimRight(o.Master, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--master %q is not a URL of the form http://localhost:8080", o.Master)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if o.CAFile != "" {
		f, err := os.Open(o.CAFile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		data, err := bounded.All(f, maxCA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.CAFile, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s has no certificate", o.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &client{base: u, token: o.Token, http: &http.Client{Transport: transport}}, nil
}

// open sends a request and returns the body of a successful answer. path may have a query.
func (c *client) open(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, in)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	data, _ := bounded.All(resp.Body, 64<<10)
	var said wire.Error
	if json.Unmarshal(data, &said) == nil && said.Error != "" {
		return nil, fmt.Errorf("%s (status %d)", said.Error, resp.StatusCode)
	}
	return nil, fmt.Errorf("unexpected status %d: %s", resp.StatusCode, bytes.TrimSpace(data))
}

// do sends a request and decodes the answer into a value unless it is nil.
func (c *client) do(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	in, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer in.Close()
	data, err := bounded.All(in, maxAnswer)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("could not decode the answer: %w", err)
	}
	return nil
}

func at(kind, id string) string { return "/api/v1/" + kind + "/" + url.PathEscape(id) }
