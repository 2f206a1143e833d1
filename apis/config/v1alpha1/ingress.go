package v1alpha1

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Ingress configures the ports for Ingresses on nodes of servers.
type Ingress struct {
	// IngressHTTPPort and IngressHTTPSPort are opened when the first Ingress of the class "coracle" is created. 0
	// disables a port.
	IngressHTTPPort  int
	IngressHTTPSPort int
}

func (c Ingress) validate() error {
	var errs []error
	for _, o := range []struct {
		option string
		port   int
	}{{"ingress-http-port", c.IngressHTTPPort}, {"ingress-https-port", c.IngressHTTPSPort}} {
		if o.port < 0 || o.port > 65535 {
			errs = append(errs, fmt.Errorf("%s %d is not within 0 to 65535", o.option, o.port))
		}
	}
	if c.IngressHTTPPort != 0 && c.IngressHTTPPort == c.IngressHTTPSPort {
		errs = append(errs,
			fmt.Errorf("ingress-http-port and ingress-https-port are both %d: choose separate ports", c.IngressHTTPPort))
	}
	return errors.Join(errs...)
}

func (c *Ingress) options(f *pflag.FlagSet) {
	f.IntVar(&c.IngressHTTPPort, "ingress-http-port", 80, "port of this node for HTTP of Ingresses; 0 for none")
	f.IntVar(&c.IngressHTTPSPort, "ingress-https-port", 443, "port of this node for HTTPS of Ingresses; 0 for none")
}
