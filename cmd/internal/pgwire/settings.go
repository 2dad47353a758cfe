package pgwire

import (
	"maps"
	"strconv"
	"strings"
)

// reported are the settings that are sent to a client when it connects and when they change: PostgreSQL 18's GUC_REPORT settings, among them
// those that libpq's target_session_attrs uses.
var reported = [...]string{
	"application_name", "client_encoding", "DateStyle", "default_transaction_read_only", "in_hot_standby", "integer_datetimes",
	"IntervalStyle", "is_superuser", "scram_iterations", "search_path", "server_encoding", "server_version", "session_authorization",
	"standard_conforming_strings", "TimeZone",
}

// defaults are the settings that have a value without being set. Any other setting can be set, without effect.
var defaults = map[string]string{
	"application_name": "", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "default_transaction_isolation": "read committed",
	"default_transaction_read_only": "off", "extra_float_digits": "1", "in_hot_standby": "off", "integer_datetimes": "on",
	"IntervalStyle": "postgres", "is_superuser": "off", "jit": "off", "lc_collate": "C", "max_identifier_length": "255",
	"scram_iterations": "4096", "search_path": "\"$user\", public", "server_encoding": "UTF8", "standard_conforming_strings": "on",
	"statement_timeout": "0", "idle_in_transaction_session_timeout": "0", "lock_timeout": "0", "ssl": "off", "TimeZone": "UTC",
	"transaction_isolation": "read committed", "transaction_read_only": "off", "transaction_deferrable": "off",
}

// fixed settings can't be set.
var fixed = map[string]bool{
	"in_hot_standby": true, "integer_datetimes": true, "is_superuser": true, "max_identifier_length": true, "server_encoding": true,
	"server_version": true, "server_version_num": true, "session_authorization": true, "ssl": true, "lc_collate": true,
}

// canonical returns a setting's name in PostgreSQL's spelling.
func canonical(name string) string {
	switch name = fold(name); name {
	case "datestyle":
		return "DateStyle"
	case "intervalstyle":
		return "IntervalStyle"
	case "timezone":
		return "TimeZone"
	}
	return name
}

// settings holds a session's settings. The maps are replaced, never changed, so a copy of the struct is a copy of the settings.
type settings struct {
	start   map[string]string // from the startup message: what RESET restores
	session map[string]string
	local   map[string]string // until the transaction ends
	version int               // counts changes
}

func (s *settings) get(name string) (string, bool) {
	for _, m := range [...]map[string]string{s.local, s.session, s.start, defaults} {
		if v, ok := m[name]; ok {
			return v, true
		}
	}
	return "", false
}

const (
	maxSettings     = 100
	maxSettingBytes = 4096
)

// change sets or, with nil, resets a setting.
func (s *settings) change(name string, v *string, local bool) error {
	v, err := checkSetting(name, v)
	if err != nil {
		return err
	}
	if len(s.session)+len(s.local) >= maxSettings {
		return errorf(tooLarge, "a connection may set at most %d settings here", maxSettings)
	}
	s.version++
	s.local = with(s.local, name, nil)
	switch {
	case !local:
		s.session = with(s.session, name, v)
	case v == nil:
		if start, ok := s.start[name]; ok {
			v = &start
		} else {
			start = defaults[name]
			v = &start
		}
		fallthrough
	default:
		s.local = with(s.local, name, v)
	}
	return nil
}

// with returns a copy of the map with the name set or, with nil, without it.
func with(m map[string]string, name string, v *string) map[string]string {
	if _, ok := m[name]; !ok && v == nil {
		return m
	}
	m = maps.Clone(m)
	if v == nil {
		delete(m, name)
		return m
	}
	if m == nil {
		m = map[string]string{}
	}
	m[name] = *v
	return m
}

func (s *settings) resetAll() {
	s.session, s.local = nil, nil
	s.version++
}

// checkSetting checks a setting, and returns the value to store.
func checkSetting(name string, v *string) (*string, error) {
	if fixed[name] {
		return nil, errorf("55P02", "parameter \"%s\" cannot be changed", name)
	}
	if v == nil {
		return nil, nil
	}
	if len(*v) > maxSettingBytes || len(name) > maxSettingBytes {
		return nil, errorf(tooLarge, "parameter \"%s\" is too long: at most %d bytes are allowed here", cut(name, 64), maxSettingBytes)
	}
	switch name {
	case "client_encoding":
		encoding := encodingName(*v)
		if encoding == "" {
			return nil, errorf(badValue, "invalid value for parameter \"client_encoding\": \"%s\"", cut(*v, 64)).
				hint("Here text is UTF-8: set client_encoding to UTF8.")
		}
		v = &encoding
	case "DateStyle": // PostgreSQL reports both parts, and drivers require ISO
		style := strings.ToUpper(*v)
		if !strings.Contains(style, ",") {
			style += ", MDY"
		}
		v = &style
	case "standard_conforming_strings":
		if on, err := boolType.cast(v); err != nil || *on != "t" {
			return nil, errorf(badValue, "parameter \"standard_conforming_strings\" is always on here")
		}
		on := "on"
		v = &on
	}
	return v, nil
}

// encodingName returns the canonical name of an encoding under which UTF-8 passes unchanged, or "".
func encodingName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, fold(s))
	switch s {
	case "utf8", "unicode":
		return "UTF8"
	case "sqlascii":
		return "SQL_ASCII"
	}
	return ""
}

// setting returns a setting's value, including settings of the server and of the connection.
func (c *conn) setting(name string) (string, error) { return c.settingIn(&c.settings, name) }

func (c *conn) settingIn(s *settings, name string) (string, error) {
	switch name {
	case "server_version":
		return c.server.config.ServerVersion, nil
	case "server_version_num":
		return versionNumber(c.server.config.ServerVersion), nil
	case "session_authorization":
		return c.user, nil
	case "ssl":
		if c.door.config.TLS != nil {
			return "on", nil
		}
	}
	if v, ok := s.get(name); ok {
		return v, nil
	}
	return "", errorf(noSuchObject, "unrecognized configuration parameter \"%s\"", cut(name, 64))
}

func (c *conn) set(name string, v *string, local bool) error {
	return c.settings.change(name, v, local)
}

// versionNumber converts "18.1 (Debian 18.1-1)" to 180001.
func versionNumber(version string) string {
	version, _, _ = strings.Cut(version, " ")
	major, minor, _ := strings.Cut(version, ".")
	m, _ := strconv.Atoi(strings.TrimRight(major, "abcdeltrv"))
	n, _ := strconv.Atoi(minor)
	return strconv.Itoa(m*10000 + n)
}
