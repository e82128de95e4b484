"""`runway queue simulate`: recorded tickets under other shares, bounds or capacity, as a table, as JSON and as a picture. It
opens no connection and changes nothing: files in, figures out.

Can go wrong: a picture where matplotlib is not installed. It is asked for before anything is computed.
"""
