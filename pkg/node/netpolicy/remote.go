package netpolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// answerTimeout limits a request. A server answers within two minutes even if the rules have not changed.
	answerTimeout = 150 * time.Second
	// maxRules limits the rules of a node, in bytes.
	maxRules = 64 << 20
)

// Remote is the Source for nodes without a server in their process. Do sends a request to an API server with the
// node's credentials.
type Remote struct {
	Do func(*http.Request) (*http.Response, error)
}

var _ Source = Remote{}

// Next implements Source.
func (r Remote) Next(ctx context.Context, node, after string) (*Rules, error) {
	for {
		rules, err := r.ask(ctx, node, after)
		if rules != nil || err != nil {
			return rules, err
		}
	}
}

// ask returns nil if the rules have not changed.
func (r Remote) ask(ctx context.Context, node, after string) (*Rules, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"/api/v1/nodes/"+url.PathEscape(node)+"/networkpolicy?after="+url.QueryEscape(after), nil)
	if err != nil {
		return nil, err
	}
	res, err := r.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := bounded.All(res.Body, maxRules)
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusNoContent:
		return nil, nil
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the API server answers %d: %.200s", res.StatusCode, strings.TrimSpace(string(data)))
	}
	var rules Rules
	if err := json.Unmarshal(data, &rules); err != nil {
		return nil, fmt.Errorf("the rules are not valid: %w", err)
	}
	if err := rules.check(); err != nil {
		return nil, fmt.Errorf("the rules are not valid: %w", err)
	}
	return &rules, nil
}

// check returns an error for rules that the kernel would reject.
func (r *Rules) check() error {
	for name, rules := range r.Chains {
		if !strings.HasPrefix(name, "in-") && !strings.HasPrefix(name, "out-") {
			return fmt.Errorf("chain %q", name)
		}
		for _, rule := range rules {
			_, addresses := r.Addresses[rule.Addresses]
			_, blocks := r.Blocks[rule.Blocks]
			_, endpoints := r.Endpoints[rule.Endpoints]
			if !addresses && rule.Addresses != "" || !blocks && rule.Blocks != "" || !endpoints && rule.Endpoints != "" {
				return fmt.Errorf("chain %q refers to a set that is not there", name)
			}
		}
	}
	for _, p := range r.Pods {
		for _, chain := range []string{p.Ingress, p.Egress} {
			if _, there := r.Chains[chain]; !there && chain != "" {
				return fmt.Errorf("pod %s/%s refers to chain %q, which is not there", p.Namespace, p.Name, chain)
			}
		}
	}
	for name, all := range r.Addresses {
		for _, a := range all {
			if !a.Is4() {
				return fmt.Errorf("set %q has address %s", name, a)
			}
		}
	}
	for name, all := range r.Endpoints {
		for _, d := range all {
			if !d.Address.Addr().Is4() {
				return fmt.Errorf("set %q has address %s", name, d.Address)
			}
		}
	}
	for name, all := range r.Blocks {
		last := netip.Addr{}
		for _, b := range all {
			if !b.From.Is4() || !b.To.Is4() || b.To.Less(b.From) || last.IsValid() && !last.Less(b.From) {
				return fmt.Errorf("set %q has range %s-%s", name, b.From, b.To)
			}
			last = b.To
		}
	}
	return nil
}
