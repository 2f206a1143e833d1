package commands

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/remote"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// BuildbarnSmokeOptions are the options of the smoke test of a farm.
type BuildbarnSmokeOptions struct {
	// Frontend is host:port; empty for the frontend in the cluster's namespace.
	Frontend string
	Instance string
	// Platform are platform properties as name=value.
	Platform []string
	Timeout  time.Duration
	// CA, Cert, Key and Token are file names. TLS is used if one of CA, Cert and Key is given, or with the system's
	// authorities if TLS is set. Otherwise the Secrets of a frontend in the cluster decide.
	CA, Cert, Key, Token, ServerName string
	TLS                              bool
	// Output is empty for lines of text, or json.
	Output string
}

// BuildbarnSmoke executes an action on a farm, and prints each step as it ends. If Frontend is given, it does not
// connect to the cluster.
func BuildbarnSmoke(ctx context.Context, out, errs io.Writer, connect func() (*command.Cluster, error),
	o BuildbarnSmokeOptions) error {
	if o.Output != "" && o.Output != "json" {
		return fmt.Errorf("the output format %q is not json", o.Output)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout must be positive")
	}
	platform, err := properties(o.Platform)
	if err != nil {
		return err
	}
	config := remote.Config{Address: o.Frontend, Instance: o.Instance}
	if config.TLS, config.Token, err = o.transport(); err != nil {
		return err
	}
	from := ""
	if config.Address == "" {
		connected, err := connect()
		if err != nil {
			return err
		}
		c := cluster{connected}
		service, err := c.frontend(ctx)
		if err != nil {
			return err
		}
		if config.Address, err = addressOf(service); err != nil {
			return err
		}
		from = service.Namespace + "/" + service.Name
		if config.TLS == nil {
			if config.TLS, err = c.frontendTLS(ctx, service); err != nil {
				return err
			}
		}
	}
	client, err := remote.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	steps := &stepPrinter{out: out, json: o.Output == "json"}
	steps.begin(config.Address, from)
	smoke := remote.Smoke{Platform: platform, Timeout: o.Timeout, Progress: func(text string) {
		if o.Output == "" {
			fmt.Fprintf(errs, "%s\n", text)
		}
	}}
	err = smoke.Run(ctx, client, steps.step)
	if ended := steps.end(config.Address); err == nil {
		err = ended
	}
	return err
}

func properties(pairs []string) (map[string]string, error) {
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("the platform property %q is not name=value", p)
		}
		if old, have := m[name]; have && old != value {
			return nil, fmt.Errorf("the platform property %s is given twice", name)
		}
		m[name] = value
	}
	return m, nil
}

// transport returns the TLS configuration, nil for plain text, and the token.
func (o BuildbarnSmokeOptions) transport() (*tls.Config, string, error) {
	if !o.TLS && o.CA == "" && o.Cert == "" && o.Key == "" {
		for name, value := range map[string]string{"--server-name": o.ServerName, "--token-file": o.Token} {
			if value != "" {
				return nil, "", fmt.Errorf("%s is for TLS: add --tls or --ca", name)
			}
		}
		return nil, "", nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.CA != "" {
		text, err := bounded.Configured(o.CA, 1<<20)
		if err != nil {
			return nil, "", err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, "", fmt.Errorf("%s has no certificates in PEM format", o.CA)
		}
	}
	if (o.Cert == "") != (o.Key == "") {
		return nil, "", fmt.Errorf("--cert and --key belong together")
	}
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, "", err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if o.Token == "" {
		return c, "", nil
	}
	text, err := bounded.Configured(o.Token, 64<<10)
	return c, strings.TrimSpace(string(text)), err
}

// stepPrinter prints steps as lines when they end, or all of them as JSON at the end.
type stepPrinter struct {
	out   io.Writer
	json  bool
	steps []stepJSON
	total time.Duration
}

type stepJSON struct {
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
	Detail  string  `json:"detail,omitempty"`
	Error   string  `json:"error,omitempty"`
}

func (p *stepPrinter) begin(address, service string) {
	if p.json {
		return
	}
	if service != "" {
		address += " (service " + service + ")"
	}
	fmt.Fprintf(p.out, "%-14s%10s   %s\n", "frontend", "", address)
}

func (p *stepPrinter) step(s remote.Step) {
	p.total += s.Took
	j := stepJSON{Step: s.Name, Seconds: s.Took.Seconds(), Detail: s.Detail}
	if s.Err != nil {
		j.Error = s.Err.Error()
	}
	p.steps = append(p.steps, j)
	if p.json {
		return
	}
	detail := s.Detail
	if s.Err != nil {
		detail = strings.TrimPrefix(detail+"; failed", "; ")
	}
	fmt.Fprintf(p.out, "%-14s%10s   %s\n", s.Name, milliseconds(s.Took), detail)
}

func (p *stepPrinter) end(address string) error {
	if p.json {
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Frontend string     `json:"frontend"`
			Steps    []stepJSON `json:"steps"`
		}{address, p.steps})
	}
	_, err := fmt.Fprintf(p.out, "%-14s%10s\n", "total", milliseconds(p.total))
	return err
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
